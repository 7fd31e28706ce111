"""Search of training rows that repeat held-out rows or rows of benchmarks.

What is held out is indexed, training rows are streamed past it: memory is bounded by what is held
out, time grows with the number of training rows. A row with pictures repeats another only if they
show the same pixels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from rl_core.data.overlap.boilerplate import Templates
from rl_core.data.overlap.compare import Likeness, compare
from rl_core.data.overlap.index import Held, HeldIndex, Media, Words
from rl_core.data.overlap.questions import COLUMNS, Pixels, digest, media_of, text_of
from rl_core.data.overlap.rows import Row, Rows
from rl_core.data.overlap.words import Segment, segments_of
from rl_core.errors import DataError
from schemas.receipts import Overlap

SAMPLE = 2_000
"""Rows of each training file from whose beginning its templates are learnt."""
BATCH = 2_048


class Search:
    """A search for rows that repeat what is held out.

    Args: held_out: held-out rows and benchmarks.
    Raises: DataError when a benchmark has no question in any row.
    """

    def __init__(self, train: Sequence[Rows], held_out: Sequence[Rows]) -> None:
        self.train = train
        self.has_pictures = False
        """True if a held-out row has pictures."""
        self.templates, self.pixels = Templates(), Pixels()
        self.is_benchmark = {rows.file: rows.benchmark for rows in held_out}
        sample = []
        for rows in train:
            of_file = [_segments(row) for _, row in islice(rows.read(), SAMPLE)]
            self.templates.learn(of_file)
            sample += of_file
        held = {rows.file: _read(rows) for rows in held_out}
        for rows in held.values():
            self.templates.learn(one.segments for one in rows)
        sampled = {self.templates.without(one) for one in sample if one}
        self.index = HeldIndex(self._texts(held, held_out), sorted(sampled))

    def _texts(
        self, held: Mapping[str, Sequence[_HeldRow]], files: Sequence[Rows]
    ) -> Iterable[Held]:
        texts: dict[Words, Held] = {}
        for rows in files:
            for one in held[rows.file]:
                words = self.templates.without(one.segments)
                media = self.pixels.of(one.media, rows.folder)
                self.has_pictures = self.has_pictures or bool(media)
                if words or media:
                    text = texts.setdefault(words, Held(words))
                    text.add(media, rows.file, one.digest, one.number)
        return texts.values()

    def all_overlaps(self) -> Iterator[Overlap]:
        """Yield what training rows repeat, in the order of their files and rows: for each row and
        each other file the row it is most like."""
        for rows in self.train:
            for batch in _batches(rows.read()):
                yield from self._overlaps(rows, batch)

    def _overlaps(self, rows: Rows, batch: Sequence[tuple[int, Row]]) -> Iterator[Overlap]:
        """Yield what the rows of a batch repeat."""
        texts = [self.templates.without(_segments(row)) for _, row in batch]
        found = self.index.candidates(texts)
        for (number, row), words, candidates in zip(batch, texts, found, strict=True):
            if candidates:
                yield from self._of_row(rows, number, row, words, candidates)

    def _of_row(
        self, rows: Rows, number: int, row: Row, words: Words, candidates: Iterable[int]
    ) -> Iterator[Overlap]:
        media: Media | None = None
        best: dict[str, tuple[Likeness, Mapping[bytes, int]]] = {}
        for candidate in candidates:
            held = self.index.texts[candidate]
            if media is None:
                media = self.pixels.of(media_of(row), rows.folder)
            if (files := held.rows.get(media)) is None:
                continue
            likeness = compare(held.words, words, self.index.common)
            if likeness is None:
                continue
            for file, numbers in files.items():
                if file not in best or best[file][0].share < likeness.share:
                    best[file] = (likeness, numbers)
        own = digest(row) if best else b""
        for file, (likeness, numbers) in best.items():
            yield Overlap(
                file=rows.file,
                row=number,
                other_file=file,
                other_row=numbers.get(own, next(iter(numbers.values()))),
                benchmark=self.is_benchmark[file],
                kind=likeness.kind,
                share=round(likeness.share, 4),
                passage=likeness.passage,
                verbatim=own in numbers,
            )


@dataclass(frozen=True)
class _HeldRow:
    number: int
    segments: list[Segment]
    media: list[object]
    digest: bytes


def _read(rows: Rows) -> list[_HeldRow]:
    found: list[_HeldRow] = []
    num_rows = 0
    for number, row in rows.read():
        num_rows += 1
        segments, media = _segments(row), media_of(row)
        if segments or media:
            found.append(_HeldRow(number, segments, media, digest(row)))
    if rows.benchmark and not found:
        raise DataError(
            f"{rows.file}: none of its {num_rows} rows has a question to compare with; expected "
            f"a text or messages in one of {', '.join(COLUMNS)}"
        )
    return found


def _segments(row: Row) -> list[Segment]:
    return segments_of(text_of(row))


def _batches(rows: Iterator[tuple[int, Row]]) -> Iterator[list[tuple[int, Row]]]:
    while batch := list(islice(rows, BATCH)):
        yield batch
