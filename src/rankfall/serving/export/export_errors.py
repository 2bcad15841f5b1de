"""Why torch cannot export a model: the operation, and the line of the model's code."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rankfall.registry.stored_sources import short_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rankfall.models.build import ModelDescription

_OPERATION = re.compile(r"op='([\w.]+)'|target=torch\.ops\.([\w.]+?)(?:\.default)?\]")
_LINE = re.compile(r'File "([^"]+)", line (\d+)')
_ADVICE = (
    "ONNX has no such operation. Compute it from others (see the operators of ONNX), or leave it out of forward when "
    "the model is exported: torch.compiler.is_exporting() is then true"
)
_DATA_DEPENDENT = (
    "the path through forward depends on the values of tensors, and a graph has one path; choose by torch.where"
)


def explain_export_error(error: BaseException, model: ModelDescription, trace: Callable[[], Any]) -> str:
    """Return one sentence about why a model cannot be exported.

    Args:
        error: The exception of ``torch.onnx.export``.
        model: The model.
        trace: Returns the traced program of the model, whose nodes know the lines that they come from.
    """
    chain = list(_chain(error))
    name, file = short_name(model.config["kind"]), (model.source or {}).get("file", "")
    operation = next((op for one in chain if (op := _operation(str(one)))), None)
    if operation is not None and any("No ONNX function" in str(one) for one in chain):
        return f"{name} cannot be exported: it uses {operation}{_at(_line_of(operation, trace, file))}. {_ADVICE}"
    root = next((one for one in reversed(chain) if type(one).__module__.startswith("torch.fx")), chain[-1])
    at = _at(_last_line(str(root), file))
    if type(root).__name__ == "GuardOnDataDependentSymNode":
        return f"{name} cannot be exported{at}: {_DATA_DEPENDENT}"
    first = (str(root).strip() or type(root).__name__).splitlines()[0]
    return f"{name} cannot be exported{at}: {type(root).__name__}: {first}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__ or one.__context__


def _operation(text: str) -> str | None:
    found = _OPERATION.search(text)
    return found and (found[1] or found[2])


def _line_of(operation: str, trace: Callable[[], Any], file: str) -> str | None:
    """Return the line of a file from which an operation of a model comes, if torch knows it."""
    try:
        nodes = trace().graph.nodes
    except Exception:  # the error itself is reported without a line
        return None
    word = operation.rpartition(".")[2].lstrip("_")
    for node in nodes:
        if word in str(node.target) and (line := _last_line(str(node.meta.get("stack_trace", "")), file)):
            return line
    return None


def _last_line(text: str, file: str) -> str | None:
    """Return the last line of a file in a stack trace."""
    lines = [f"{path}, line {number}" for path, number in _LINE.findall(text) if path == file]
    return lines[-1] if lines else None


def _at(line: str | None) -> str:
    return f" ({line})" if line else ""
