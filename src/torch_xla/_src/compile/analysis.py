"""What is said about launches on request: `PT_XLA_DEBUG`, `PT_XLA_DEBUG_LEVEL`, `XLA_SAVE_TENSORS_FILE`.

The layout of the analyses is PyTorch/XLA's, since people and scripts read it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch_xla._src import eager, environment
from torch_xla._src.compile import causes, compile_log
from torch_xla._src.compile.why import Explanation
from torch_xla._src.graph.printing import Graph, shows_places
from torch_xla._src.runtime import frames, metrics

if TYPE_CHECKING:
    from torch_xla._src.compile.launch import Launch
    from torch_xla._src.compile.program import Program

_RULE, _THIN = "=" * 80, "-" * 80
_FULL = 100  # the level that PT_XLA_DEBUG=1 means


def level() -> int:
    """0: no analysis; 1: of compiles; 2 and more: of executions too."""
    if "PT_XLA_DEBUG" not in os.environ and "PT_XLA_DEBUG_LEVEL" not in os.environ:
        return 0
    if environment.flag("PT_XLA_DEBUG"):
        return _FULL
    return environment.integer("PT_XLA_DEBUG_LEVEL", 0)


def write(text: str) -> None:
    """Appends to `PT_XLA_DEBUG_FILE`, or writes to standard error."""
    path = os.environ.get("PT_XLA_DEBUG_FILE")
    if path:
        with open(path, "a") as file:
            file.write(text)
    else:
        sys.stderr.write(text)
        sys.stderr.flush()


def launching(launch: Launch) -> None:
    """Takes note of a launch, before its program is looked up."""
    metrics.sample("TensorsGraphSize", launch.node.depth)
    if "XLA_SAVE_TENSORS_FILE" in os.environ:
        _save(launch)


def executing(launch: Launch) -> None:
    """Takes note of the execution of a launch, once it has a program."""
    if causes.nothing_may_run:
        _analyse("Unexpected Execution Analysis", "Execution Cause", launch)
    if level() >= 2 and not eager.enabled:
        _analyse("Execution Analysis", "Execution Cause", launch)


def compiled(launch: Launch, program: Program, nanoseconds: int, why: Explanation | None) -> None:
    """Takes note of a program that was compiled for a launch. why: None in eager mode."""
    if why is None:
        metrics.sample("EagerOpCompileTime", nanoseconds)
        return
    metrics.sample("CompileTime", nanoseconds)
    metrics.sample("InputOutputAliasCount", len(program.donated))
    metrics.count("UncachedCompile")
    metrics.count("CreateCompileHandles")
    node, seconds = launch.node, nanoseconds / 1e9
    one = causes.Compile(
        causes.current, frames.user_line(), node.depth, len(launch.leaf_buffers), len(program.live), seconds, str(why)
    )
    causes.history.append(one)
    compile_log.add(one)
    if level() >= 1:
        digest = _analyse("Compilation Analysis", "Compilation Cause", launch)
        write("\n" + _prefixed("Compilation Explanation", str(why)))
        write(f"\nComputation hash: {digest}\n")
        _analyse_memory(program)


def _graph(launch: Launch, roots: Sequence[int] | None = None) -> Graph:
    leaves = {-1 - i: spec for row in launch.node.path() for i, spec in enumerate(row.leaves, row.leaf_base)}
    specs = [leaves[-1 - i] for i in range(len(leaves))]
    return Graph(launch.node.path(), specs, [number for number, _ in launch.live] if roots is None else roots)


def _analyse(title: str, heading: str, launch: Launch) -> str:
    digest = _graph(launch).digest()
    lines = [_RULE, heading, f"  {causes.current}", "Graph Info: "]
    if causes.graph_name:
        lines.append(f"  Graph Name: {causes.graph_name}")
    lines += [
        f"  Graph Hash: {digest}",
        f"  Number of Graph Inputs: {len(launch.leaf_buffers)}",
        f"  Number of Graph Outputs: {len(launch.live)}",
        "Python Frame Triggered Execution: ",
        _frames(),
        _THIN,
        _RULE,
    ]
    write("\n" + _prefixed(title, "\n".join(lines)))
    return digest


def _prefixed(title: str, text: str) -> str:
    return "".join(f"{title}: {line}\n" for line in text.splitlines())


def _frames() -> str:
    limit = environment.integer("PT_XLA_DEBUG_MAX_FRAME", 8)
    found = frames.user_frames()
    lines = [f"  {function} ({file}:{line})" for function, file, line in found[:limit]]
    return "\n".join(lines if len(found) <= limit else [*lines, "  .........."])


def _analyse_memory(program: Program) -> None:
    plan = program.executable.memory_analysis()

    def gigabytes(name: str) -> str:
        return f"{getattr(plan, name, 0) / 2**30:.6f} GB"

    lines = [
        _RULE,
        f"Graph input size: {gigabytes('argument_size_in_bytes')}",
        f"Graph output size: {gigabytes('output_size_in_bytes')}",
        f"Aliased Input size: {gigabytes('alias_size_in_bytes')}",
        f"Intermediate tensor size: {gigabytes('temp_size_in_bytes')}",
        f"Compiled program size: {gigabytes('generated_code_size_in_bytes')}",
        _THIN,
        _RULE,
    ]
    write("\n" + _prefixed("Post Compilation Analysis", "\n".join(lines)))


# ---- XLA_SAVE_TENSORS_FILE ------------------------------------------------------------------------------------------


def _save(launch: Launch) -> None:
    """Appends the recording to the file, in the form `XLA_SAVE_TENSORS_FMT` (text, hlo, dot, stablehlo)."""
    wanted = os.environ.get("XLA_SAVE_TENSORS_FMT", "text")
    if wanted not in _FORMATS:
        raise ValueError(f"XLA_SAVE_TENSORS_FMT={wanted} is none of {', '.join(_FORMATS)}")
    graph = _graph(launch)
    lines = ["[ScheduleSyncTensorsGraph]", "TensorsGraphInfo:"]
    lines += [f"  {function} ({file}:{line})" for function, file, line in frames.user_frames()]
    hashes = ", ".join(_graph(launch, [number]).digest() for number, _ in launch.live)
    text = _FORMATS[wanted](launch, graph)
    lines += ["", f"Root Hashes: ({hashes})", "", "## BEGIN_GRAPH", text.rstrip("\n"), ""]
    lines += [f"Graph Hash: {graph.digest()}", "", "## END_GRAPH", "", ""]
    with open(f"{os.environ['XLA_SAVE_TENSORS_FILE']}.0", "a") as file:  # .ORDINAL
        file.write("\n".join(lines))


def _lowered(launch: Launch) -> Any:
    from torch_xla._src.graph.inspect import lowered

    counts = len(launch.floats), len(launch.ints), len(launch.keys)
    return lowered(launch.node.path(), launch.leaf_buffers, [number for number, _ in launch.live], counts)


_FORMATS: dict[str, Callable[[Launch, Graph], str]] = {
    "text": lambda launch, graph: graph.text(shows_places()),
    "hlo": lambda launch, graph: str(_lowered(launch).as_text(dialect="hlo")),
    "dot": lambda launch, graph: graph.dot(),
    "stablehlo": lambda launch, graph: str(_lowered(launch).as_text()),
}
