"""Where rows come from: the module of the user's model, the user's line, and for backward rows those of the forward row.

Note [Module paths]
Nothing is hooked: when a row is made, which a replayed step does not do, the frames being executed tell which modules are
being called. A path is the name of the outermost module, as the user's code has it, then of each inner module the name
that its caller knows it by. Modules that are not in the tree of the caller go by their classes.

Note [Rows of a backward pass]
Autograd's threads run no module. But autograd numbers its nodes in the order in which they are made, by thread, just
before the op that they are of; so the number at which a forward row is made, counted from the start of its recording,
finds the row of a node again, in this recording or in one of the last. It is the same when the recording is replayed. What
autograd's threads make themselves has numbers of their own: in a recomputation (reentrant checkpoints) counted from where
it began; else (`create_graph`) from nothing. Where rows of both kinds could be meant, the name of the node decides. A
recomputation runs modules, so its own rows have frames to go by.
"""

from __future__ import annotations

import inspect
import sys
import threading
import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from torch_xla._src.graph.value import Row
from torch_xla._src.runtime import frames

if TYPE_CHECKING:
    from torch_xla._src.graph.recorder import Recorder

_CALLS = ("forward", "__call__", "_call_impl")
_NOT_CALLS = ("__init__", "reset_parameters")  # of modules that are being made
_ENGINE = "_engine_run_backward"
_BEGIN = "torch_xla::recompute_begin"
_MARKERS = (_BEGIN, "torch_xla::recompute_end")
_NEAR = 8  # nodes that may lie between a node without rows and the row that is taken for it


# Where a recording began: its generation, the thread, and autograd's next number on it. Then for each recomputation in it
# the depth of the row that begins it, and the next number there.
Mark = tuple[int, int, int, list[tuple[int, int]]]


class Origin(NamedTuple):
    """What a Row says about where it comes from; see there."""

    line: str
    module: str
    sequence: int
    backward: bool


def of_new_row(recorder: Recorder, op: Any) -> Origin:
    """The origin of the op that is being recorded."""
    if op._schema.name in _MARKERS:
        return Origin(frames.user_line(), "", 0, False)
    node = torch._C._current_autograd_node()
    found = _Frames(sys._getframe(1), inside_backward=node is not None, in_optimizer=recorder.in_optimizer)
    number = torch._C._autograd._get_sequence_nr()
    _, thread, start, regions = recorder.mark
    own_thread = threading.get_ident() == thread
    if own_thread and node is None:
        sequence = number - start
    else:
        sequence = -1 - number + (regions[-1][1] if regions else 0)
    if node is None or found.modules:
        return Origin(found.line or frames.user_line(), sys.intern(found.path()), sequence, False)
    forward = _forward_row(recorder, node, found.in_engine and not own_thread)
    if forward is None:
        return Origin(found.line or frames.user_line(), sys.intern(_owner(node)), sequence, True)
    return Origin(found.line or _backward_line(forward.line), forward.module, sequence, True)


def _backward_line(line: str) -> str:
    """ "file:12 (backward of forward)" for "file:12 (forward)"."""
    place, parenthesis, function = line.rpartition("(")
    if not parenthesis or function.startswith("backward of "):
        return line
    return f"{place}(backward of {function}"


# ---- modules --------------------------------------------------------------------------------------------------------


class _Frames:
    """What the frames of this thread tell.

    line: "file:line (function)" of the innermost user frame, empty if there is none in the backward pass that is running.
    modules: those being called, outermost first. optimizer: the class of the one whose step is running, within which no
        module is called. outer: the frame that called the outermost module. in_engine: whether this thread has called
        autograd's engine, within which it is.
    """

    def __init__(self, frame: FrameType | None, inside_backward: bool, in_optimizer: bool) -> None:
        self.line = self.optimizer = ""
        self.modules: list[nn.Module] = []
        self.outer: FrameType | None = None
        self.in_engine = False
        while frame is not None:
            code = frame.f_code
            if inside_backward and code.co_name == _ENGINE:
                self.in_engine = True
                break
            if not self.line and not frames.is_library(code.co_filename):
                self.line = f"{code.co_filename}:{frame.f_lineno} ({code.co_name})"
            module = _module_of(frame)
            if module is not None:
                if not self.modules or self.modules[-1] is not module:
                    self.modules.append(module)
                self.outer = frame.f_back
            elif in_optimizer and not self.modules and code.co_name == "step":
                optimizer = _local(frame, "self")
                if isinstance(optimizer, torch.optim.Optimizer):
                    self.optimizer = type(optimizer).__name__
                    break
            frame = frame.f_back
        self.modules.reverse()

    def path(self) -> str:
        """ "model.layers.3.attn", "optimizer: SGD", or an empty string."""
        if not self.modules:
            return f"optimizer: {self.optimizer}" if self.optimizer else ""
        root = self.modules[0]
        names = [_root_name(root, self.outer)]
        for outer, inner in zip(self.modules, self.modules[1:]):
            names.append(_name_in(outer, inner) or type(inner).__name__)
        return ".".join(name for name in names if name)


def _module_of(frame: FrameType) -> nn.Module | None:
    """The module that a frame is a call or another method of."""
    code = frame.f_code
    if not code.co_argcount or code.co_name in _NOT_CALLS:
        return None
    first = code.co_varnames[0]
    if code.co_name not in _CALLS and (first != "self" or frames.is_library(code.co_filename)):
        return None
    held = _local(frame, first)
    if not isinstance(held, nn.Module):
        return None
    return getattr(held, "_orig_mod", held)  # what torch.compile wraps


def _local(frame: FrameType, name: str) -> Any:
    held = _locals(frame)
    value = held.get(name)
    _forget(frame, held)
    return value


def _locals(frame: FrameType) -> Any:
    return frame.f_locals


def _forget(frame: FrameType, held: Any) -> None:
    """Empties what `f_locals` has made: up to Python 3.12 a dict that the frame keeps, and with it every tensor in it.

    Tensors must die when they do in a step that is replayed, for what is alive is computed. A dict that somebody else
    holds (`locals()`, a debugger) is left alone.
    """
    if (
        type(held) is dict
        and frame.f_code.co_flags & inspect.CO_OPTIMIZED
        and frame.f_trace is None
        and sys.getrefcount(held) <= _SOLE_OWNERS
    ):
        held.clear()


def _count_owners() -> int:
    """References to what `f_locals` gives as `_forget` counts them when nobody else holds it."""

    def count(frame: FrameType, held: Any) -> int:
        return sys.getrefcount(held)

    frame = sys._getframe()
    held = _locals(frame)
    number = count(frame, held)
    if type(held) is dict:
        held.clear()
    return number


_SOLE_OWNERS = _count_owners()


class _Root(NamedTuple):
    module: weakref.ref[nn.Module]
    caller: CodeType | None
    name: str


_MAX_ROOTS = 64
_roots: dict[int, _Root] = {}  # outermost modules called so far, by id


def _root_name(root: nn.Module, frame: FrameType | None) -> str:
    """What the code that calls an outermost module calls it."""
    caller = None if frame is None else frame.f_code
    known = _roots.get(id(root))
    if known is not None and known.module() is root and (known.caller is caller or caller is None):
        return known.name
    name = _variable(root, frame, _name_of) or _within_known(root)
    if name is None and threading.current_thread() is not threading.main_thread():
        # A recomputation of what was replayed: the main thread waits for it in the backward pass.
        waiting = sys._current_frames().get(threading.main_thread().ident or 0)
        name = _variable(root, waiting, _name_of) or _variable(root, waiting, _name_of_outer)
    if name is None:
        return type(root).__name__
    _roots[id(root)] = _Root(weakref.ref(root), caller, name)
    if len(_roots) > _MAX_ROOTS:
        del _roots[next(iter(_roots))]
    return name


_Namer = Callable[[nn.Module, Any], "str | None"]


def _variable(root: nn.Module, frame: FrameType | None, namer: _Namer) -> str | None:
    """The name that the user's variables, or attributes of `self`, give a module; in the innermost frame that has one."""
    while frame is not None:
        if not frames.is_library(frame.f_code.co_filename):
            held = _locals(frame)
            name = namer(root, held)
            if name is None and frame.f_code.co_argcount:
                owner = held.get(frame.f_code.co_varnames[0])
                name = namer(root, getattr(owner, "__dict__", {}))
            _forget(frame, held)
            del held
            if name is None:
                name = namer(root, frame.f_globals)
            if name is not None:
                return name
        frame = frame.f_back
    return None


def _name_of(module: nn.Module, names: Any) -> str | None:
    return next((name for name, held in list(names.items()) if held is module), None)


def _name_of_outer(module: nn.Module, names: Any) -> str | None:
    for name, held in list(names.items()):
        if isinstance(held, nn.Module) and (inner := _name_in(held, module)):
            return f"{name}.{inner}"
    return None


def _within_known(module: nn.Module) -> str | None:
    """The path of a module that is called on its own, as by a recomputation, in one that has been called before."""
    for known in reversed(list(_roots.values())):
        outer = known.module()
        if outer is not None and outer is not module and (name := _name_in(outer, module)) is not None:
            return f"{known.name}.{name}"
    return None


_names: weakref.WeakKeyDictionary[nn.Module, weakref.WeakKeyDictionary[nn.Module, str]] = weakref.WeakKeyDictionary()


def _name_in(outer: nn.Module, inner: nn.Module) -> str | None:
    """The first name of a module in the tree of another, "layers.3"; None if it is not there."""
    try:
        known = _names.setdefault(outer, weakref.WeakKeyDictionary())
        name = known.get(inner)
        if name is not None and outer.get_submodule(name) is inner:
            return name
        name = next((name for name, module in outer.named_modules() if module is inner), None)
    except Exception:  # a module may define any of these
        return None
    if name:
        known[inner] = name
    return name


# ---- backward -------------------------------------------------------------------------------------------------------


class _Index:
    """Rows of one recording by number of the node that autograd made for them.

    counted: by the number from the start of the recording. own: what autograd's threads made, by the depth of the row that
    begins the recomputation (0 outside) and the number from there.
    """

    def __init__(self) -> None:
        self.counted: dict[int, Row] = {}
        self.own: dict[tuple[int, int], Row] = {}
        self.depth = self.region = 0

    def extend(self, last: Row) -> None:
        """Takes in the rows up to `last`."""
        new, row = [], last
        while row.parent is not None and row.depth > self.depth:
            new.append(row)
            row = row.parent
        for row in reversed(new):
            if row.op._schema.name == _BEGIN:
                self.region = row.depth
            elif row.sequence > 0:
                self.counted.setdefault(row.sequence, row)
            elif row.sequence:
                self.own.setdefault((self.region, -1 - row.sequence), row)
        self.depth = max(self.depth, last.depth)


_MAX_INDEXES = 8
_indexes: dict[int, _Index] = {}  # by generation


def _index(generation: int, last: Row) -> _Index:
    index = _indexes.get(generation)
    if index is None:
        index = _indexes[generation] = _Index()
        if len(_indexes) > _MAX_INDEXES:
            del _indexes[min(_indexes)]
    index.extend(last)
    return index


def _forward_row(recorder: Recorder, node: Any, nested: bool) -> Row | None:
    """The row of the op that a node of autograd is the derivative of. See Note [Rows of a backward pass].

    nested: whether the backward pass was begun within another.
    """
    number = node._sequence_nr() + 1  # the next one, when the op was recorded
    counted, own, near = list[Row](), list[Row](), list[Row]()
    for (generation, _, start, regions), last in ((recorder.mark, recorder.node), *reversed(recorder.earlier)):
        index, key = _index(generation, last), number - start
        if key > 0 and key in index.counted:
            counted.append(index.counted[key])
        near += [index.counted[k] for k in range(key - 1, max(key - _NEAR, 0), -1) if k in index.counted]
        depth, begun = next((region for region in reversed(regions) if region[1] < number), (0, 0))
        if (depth, number - begun) in index.own:
            own.append(index.own[depth, number - begun])
    exact = [*own, *counted] if nested else [*counted, *own]
    named = [row for row in exact if _is_derivative(node.name(), row)]
    found = [*named, *(own if nested else []), *counted, *near]
    return found[0] if found else None


def _is_derivative(name: str, row: Row) -> bool:
    """Whether a node's name, "AddmmBackward0", is that of a row's op."""
    op = row.op._schema.name.rpartition("::")[2].removesuffix("_copy").replace("_", "")
    return name.partition("Backward")[0].lower() == op


def _owner(node: Any) -> str:
    """The path of the module whose parameter a node accumulates the gradient of; an empty string for other nodes."""
    parameter = getattr(node, "variable", None)
    if not isinstance(parameter, nn.Parameter):
        return ""
    for known in reversed(list(_roots.values())):
        root = known.module()
        if root is None:
            continue
        for name, held in root.named_parameters():
            if held is parameter:
                return ".".join([known.name, *name.split(".")[:-1]])
    return ""
