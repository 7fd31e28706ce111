"""The complete examples of SkyRL's data format page (section 3), and the environments they name."""

from typing import Any

GSM8K: dict[str, Any] = {
    "data_source": "openai/gsm8k",
    "prompt": [
        {
            "role": "user",
            "content": "Janet has 3 apples. She buys 2 more apples. How many apples does Janet have now? Let's think "
            'step by step and output the final answer after "####".',
        }
    ],
    "env_class": "gsm8k",
    "reward_spec": {"method": "rule", "ground_truth": "5"},
    "extra_info": {
        "split": "train",
        "index": 0,
        "answer": "Janet starts with 3 apples. She buys 2 more. 3 + 2 = 5.\n#### 5",
        "question": "Janet has 3 apples. She buys 2 more apples. How many apples does Janet have now?",
    },
}
MULTIPLY: dict[str, Any] = {
    "data_source": "synthetic_multiply",
    "prompt": [
        {
            "role": "system",
            "content": (
                "You are a helpful assistant that solves multiplication problems. Put your final "
                "answer in \\boxed{answer} format."
            ),
        },
        {"role": "user", "content": "What is 42 * 73?"},
    ],
    "env_class": "multiply",
    "reward_spec": {"method": "rule", "ground_truth": "3066"},
    "extra_info": {"num_digits": 2, "split": "train"},
}
LCB: dict[str, Any] = {
    "data_source": "livecodebench",
    "prompt": [
        {
            "role": "system",
            "content": "You are an expert Python programmer. Write clean, efficient code.",
        },
        {
            "role": "user",
            "content": (
                "Write a function that returns the square of a number.\n\n```python\ndef "
                "square(n):\n    # YOUR CODE HERE\n```"
            ),
        },
    ],
    "env_class": "lcb",
    "reward_spec": {
        "method": "rule",
        "ground_truth": [
            {"input": "5", "output": "25"},
            {"input": "-3", "output": "9"},
            {"input": "0", "output": "0"},
        ],
    },
    "extra_info": {"split": "train", "difficulty": "easy"},
}
TEXT2SQL: dict[str, Any] = {
    "data_source": "spider",
    "prompt": [
        {
            "role": "system",
            "content": (
                "You are a SQL expert. Use <sql>...</sql> to execute queries. When ready, "
                "provide your final answer in <solution>...</solution>."
            ),
        },
        {
            "role": "user",
            "content": (
                "Database: employees\nTables: employees (id, name, salary)\n\nQuestion: What is "
                "the average salary?"
            ),
        },
    ],
    "env_class": "text2sql",
    "reward_spec": {"method": "rule", "ground_truth": "SELECT AVG(salary) FROM employees"},
    "extra_info": {"db_id": "employees", "max_turns": 5, "split": "train"},
}
SEARCH: dict[str, Any] = {
    "data_source": "searchR1_nq",
    "prompt": [
        {
            "role": "system",
            "content": (
                "You are a helpful assistant. Use <search>query</search> to search for information."
            ),
        },
        {"role": "user", "content": "Who won the 2024 Super Bowl?"},
    ],
    "env_class": "search",
    "reward_spec": {
        "ground_truth": ["Kansas City Chiefs", "Chiefs"],
        "question": "Who won the 2024 Super Bowl?",
        "data_source": "searchR1_nq",
    },
    "extra_info": {
        "need_tools_kwargs": True,
        "tools_kwargs": {
            "search": {
                "create_kwargs": {
                    "ground_truth": ["Kansas City Chiefs"],
                    "question": "Who won the 2024 Super Bowl?",
                }
            }
        },
    },
}
EXAMPLES = {
    "gsm8k": GSM8K,
    "multiply": MULTIPLY,
    "lcb": LCB,
    "text2sql": TEXT2SQL,
    "search": SEARCH,
}
ALLOWED = {
    "gsm8k": frozenset({"string", "number", "list"}),
    "gsm8k_multi_turn": frozenset({"string", "number", "list"}),
    "aime": frozenset({"string", "number"}),
    "multiply": frozenset({"string"}),
    "lcb": frozenset({"test_cases"}),
    "text2sql": frozenset({"string"}),
    "search": frozenset({"string", "list"}),
    "searchcode": frozenset({"string", "list"}),
}
