"""A retrieval server over a JSONL corpus: BM25 in memory, without a search engine to install.

A line of the corpus is `{"contents": ...}`, or `{"title": ..., "text": ...}`; `id` is kept. The
server answers the search tool's requests at `/retrieve`: `{"query"|"queries", "topk",
"return_scores"}`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rl_core.errors import DataError

if TYPE_CHECKING:
    from fastapi import FastAPI

MAX_QUERIES = 256
Document: TypeAlias = dict[str, str]
"""A document of a corpus: its `id` and `contents`."""


class RetrievalRequest(BaseModel):
    """A request with one query or several."""

    model_config = ConfigDict(extra="ignore")

    query: str | None = None
    queries: list[str] | None = Field(default=None, max_length=MAX_QUERIES)
    topk: int = Field(default=3, ge=1, le=100)
    return_scores: bool = True

    @model_validator(mode="after")
    def _one_of_both(self) -> RetrievalRequest:
        if (self.query is None) == (self.queries is None):
            raise ValueError("give either query or queries")
        return self


class Corpus:
    """Documents and their BM25 index (`bm25s`)."""

    def __init__(self, documents: list[Document]) -> None:
        """Index the documents.

        Args: documents: `{"id", "contents"}` each. Raises: DataError when there are none.
        """
        import bm25s

        if not documents:
            raise DataError("the corpus has no documents")
        self.documents = documents
        self._index = bm25s.BM25()
        tokens = bm25s.tokenize(
            [document["contents"] for document in documents], stopwords="en", show_progress=False
        )
        self._index.index(tokens, show_progress=False)

    @classmethod
    def read(cls, path: str | Path) -> Corpus:
        """Read a corpus from a JSONL file.

        Raises: DataError naming the file and line of what is not a document.
        """
        documents = []
        try:
            with open(path, encoding="utf-8-sig") as file:
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        documents.append(_document(line, len(documents), f"{path}:{number}"))
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: cannot be read: {error}") from error
        if not documents:
            raise DataError(f"{path}: the corpus has no documents")
        return cls(documents)

    def search(self, query: str, topk: int) -> list[tuple[Document, float]]:
        """Return the best documents and their scores, best first; documents that share no word with
        the query are left out."""
        import bm25s

        words: Any = bm25s.tokenize([query], stopwords="en", return_ids=False, show_progress=False)
        known = [word for word in words[0] if word in self._index.vocab_dict]
        if not known:
            return []
        indices, scores = self._index.retrieve(
            [known], k=min(topk, len(self.documents)), show_progress=False
        )
        pairs = zip(indices[0].tolist(), scores[0].tolist(), strict=True)
        return [(self.documents[index], float(score)) for index, score in pairs if score > 0]


def build_app(corpus: Corpus) -> FastAPI:
    """Return the server's application: `POST /retrieve` and `GET /health`."""
    from fastapi import FastAPI

    app = FastAPI(title="rl-train search")

    def retrieve(request: RetrievalRequest) -> dict[str, object]:
        queries = [request.query] if request.query is not None else request.queries or []
        return {
            "result": [
                _answer(corpus.search(query, request.topk), request.return_scores)
                for query in queries
            ]
        }

    def health() -> dict[str, object]:
        return {"status": "ok", "documents": len(corpus.documents)}

    app.post("/retrieve")(retrieve)
    app.get("/health")(health)
    return app


def _answer(found: list[tuple[Document, float]], with_scores: bool) -> list[dict[str, object]]:
    entries: list[dict[str, object]] = []
    for document, score in found:
        entries.append({"document": document, **({"score": score} if with_scores else {})})
    return entries


def _document(line: str, index: int, place: str) -> Document:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise DataError(f"{place}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{place}: expected an object with contents, got {line.strip()[:80]}")
    contents = value.get("contents")
    if contents is None and isinstance(value.get("text"), str):
        contents = "\n".join(part for part in (value.get("title"), value["text"]) if part)
    if not isinstance(contents, str) or not contents.strip():
        raise DataError(
            f"{place} field contents: expected text (or title and text), got {contents!r}"
        )
    return {"id": str(value.get("id", index)), "contents": contents}
