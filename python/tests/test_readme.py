"""The README's first block of Python runs."""

import re
from pathlib import Path


def test_the_example_runs(capsys):
    text = (Path(__file__).parents[1] / "README.md").read_text()
    (code, *_) = re.findall(r"```python\n(.*?)```", text, re.S)
    exec(code, {})
    assert capsys.readouterr().out == "(1, 100, 8, 64) (1, 8, 100)\n"
