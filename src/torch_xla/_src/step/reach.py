"""What of Python's state a function can read: found by walking from it, and compared with what it was.

Note [What a frozen step guards]
A frozen step (Note [Frozen steps]) does not run its Python, so whatever that Python would have read has to be what it was.
From the function and its arguments the walk follows closure cells, defaults, globals and attributes that the code names,
containers, attributes of modules, optimizers and other objects, hooks, and the user's own functions and classes. All that
it finds is compared at each call: plain values by type and value, other objects by identity, tensors of the CPU by version.

Of objects of the user's own classes, only attributes count whose names appear in the code that can run (as a name or as a
string), so that a trainer may count its steps outside of the step. Code of installed packages is not read: what it
keeps in globals of its own is not guarded. Nor are files, clocks, environment variables, and memory that a tensor shares
with NumPy. What cannot be compared (an iterator, a large NumPy array) keeps a step from being frozen.
"""

from __future__ import annotations

import collections
import enum
import functools
import operator
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import nn

from torch_xla._src.graph.recorder import same_constant
from torch_xla._src.runtime import frames

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_ATOMS = (
    *_PLAIN, torch.dtype, torch.device, torch.layout, torch.memory_format, range, slice, type(Ellipsis), enum.Enum,
    types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType, types.MethodDescriptorType,
    types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType, torch.Generator,
)  # fmt: skip
# Packages whose objects are no state of a model: they are compared by identity.
_OPAQUE = (
    "logging",
    "threading",
    "_thread",
    "io",
    "_io",
    "re",
    "inspect",
    "importlib",
    "jax",
    "jaxlib",
    "torch_xla",
    "weakref",
)
_CONTAINERS = (list, tuple, set, frozenset, collections.deque)
_CONSTRUCTORS = {"__init__", "__new__", "__post_init__"}
_MAX_OBJECTS = 200_000
_MAX_ELEMENTS = 1024  # of a NumPy array, whose contents are compared at each call


class Unguardable(Exception):
    """Something that a step reaches cannot be compared; the text names it."""


def is_plain(a: Any) -> bool:
    """Whether a value is compared by type and value."""
    return type(a) in _PLAIN


def same(a: Any, b: Any) -> bool:
    """Whether a function that reads `a` where it has read `b` reads the same."""
    return a is b or (type(a) is type(b) and is_plain(a) and same_constant(a, b))


def _same_all(now: Iterable[Any], before: tuple[Any, ...]) -> bool:
    return all(map(same, now, before))


class Reach:
    """What a function reaches, as it is when this is made.

    tensors: of device xla. host: of the CPU, with their versions. optimizers: those of torch.optim.
    """

    def __init__(self, function: Any, objects: Iterable[Any] = ()) -> None:
        self.tensors: list[torch.Tensor] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.host: list[tuple[torch.Tensor, int]] = []
        self._seen: dict[int, Any] = {}
        self._names: set[str] = set()
        self._called: set[type] = set()
        self._internal: set[int] = set()  # dicts of torch.nn.Module: each value belongs to one key
        # (of what, its values); those read in part: (dict, names, values, number of entries)
        self._dicts: list[tuple[dict[Any, Any], tuple[Any, ...]]] = []
        self._sequences: list[tuple[Any, tuple[Any, ...]]] = []
        self._parts: list[tuple[Mapping[str, Any], tuple[str, ...], tuple[Any, ...], int | None]] = []
        self._cells: list[tuple[types.CellType, Any]] = []
        self._slots: list[tuple[Any, str, Any]] = []
        self._arrays: list[tuple[Any, Any]] = []
        self._empty: list[Any] = []
        self._labels: dict[int, str] = {}
        self._named: list[tuple[Any, Mapping[str, Any], set[str], str]] = []  # read only where code has the name
        self._walk(function, "the function")
        for number, one in enumerate(objects):
            self._walk(one, f"argument {number}")
        self._follow_names()
        self._flatten()

    # ---- comparing -------------------------------------------------------------------------------------------------

    def unchanged(self) -> bool:
        """Whether all is as it was."""
        return self.change() is None

    def _all_identical(self) -> bool:
        """Whether containers hold the very objects that they held: the usual case, without a Python call for each."""
        return (
            list(map(len, self._dict_list)) == self._dict_sizes
            and list(map(len, self._sequence_list)) == self._sequence_sizes
            and all(map(operator.is_, chain.from_iterable(map(dict.values, self._dict_list)), self._dict_values))
            and all(map(operator.is_, chain.from_iterable(self._sequence_list), self._sequence_values))
        )

    def _flatten(self) -> None:
        self._dict_list, self._sequence_list = [d for d, _ in self._dicts], [s for s, _ in self._sequences]
        self._dict_sizes = [len(values) for _, values in self._dicts]
        self._sequence_sizes = [len(values) for _, values in self._sequences]
        self._dict_values = tuple(chain.from_iterable(values for _, values in self._dicts))
        self._sequence_values = tuple(chain.from_iterable(values for _, values in self._sequences))

    def change(self) -> str | None:
        """What is no longer as it was, or None. Fast while all is."""
        is_ = operator.is_
        if any(self._empty):
            return self._describe(next(filter(None, self._empty)))
        for held, names, before, size in self._parts:
            if size is not None and len(held) != size:
                return self._describe(held)
            if not all(map(is_, map(held.get, names), before)) and not _same_all(map(held.get, names), before):
                return self._describe(held, next(n for n, b in zip(names, before) if not same(held.get(n), b)))
        if not self._all_identical():
            for held, before in self._dicts:
                if len(held) != len(before) or not _same_all(held.values(), before):
                    return self._describe(held)
            for sequence, before in self._sequences:
                if len(sequence) != len(before) or not _same_all(sequence, before):
                    return self._describe(sequence)
        for cell, before in self._cells:
            if not same(cell.cell_contents, before):
                return self._describe(cell)
        for one, name, before in self._slots:
            if not same(getattr(one, name, None), before):
                return self._describe(one, name)
        for tensor, version in self.host:
            if tensor._version != version:
                return f"a CPU tensor ({self._labels[id(tensor)]})"
        for array, before in self._arrays:
            if array.shape != before.shape or not (array == before).all():
                return self._describe(array)
        return None

    def _describe(self, held: Any, name: str | None = None) -> str:
        label = self._labels.get(id(held), "something")
        return f"{label}, entry {name!r}" if name else label

    # ---- walking ---------------------------------------------------------------------------------------------------

    def _walk(self, one: Any, label: str) -> None:
        """Takes in an object and what it leads to. Not recursive, since a model may be nested deeply."""
        todo = [(one, label)]
        while todo:
            one, label = todo.pop()
            if isinstance(one, _ATOMS) or id(one) in self._seen:
                continue
            self._seen[id(one)] = one
            self._labels[id(one)] = label
            if len(self._seen) > _MAX_OBJECTS:
                raise Unguardable(f"more than {_MAX_OBJECTS} objects can be reached from it")
            todo.extend(self._take(one, label))

    def _take(self, one: Any, label: str) -> list[tuple[Any, str]]:
        """Notes how to compare an object; what it leads to, with labels."""
        if isinstance(one, torch.Tensor):
            return self._take_tensor(one, label)
        if isinstance(one, types.FunctionType):
            return self._take_function(one, label)
        if isinstance(one, types.MethodType):
            return [(one.__self__, label), (one.__func__, label)]
        if isinstance(one, functools.partial):
            return [(one.func, label), (one.args, label), (one.keywords, label)]
        if isinstance(one, (staticmethod, classmethod)):
            return [(one.__func__, label)]
        if isinstance(one, property):
            return [(f, label) for f in (one.fget, one.fset) if f is not None]
        if isinstance(one, dict):
            return self._take_dict(one, label)
        if isinstance(one, _CONTAINERS):
            return self._take_sequence(one, label)
        if isinstance(one, types.ModuleType):
            if not _is_library_file(getattr(one, "__file__", None)):
                self._named.append((one, vars(one), set(), label))
            return []
        if isinstance(one, type):
            return self._take_class(one, label)
        return self._take_object(one, label)

    def _take_tensor(self, one: torch.Tensor, label: str) -> list[tuple[Any, str]]:
        if type(one) not in (torch.Tensor, nn.Parameter, nn.Buffer):
            raise Unguardable(f"{label} is a {type(one).__name__}, a tensor with contents of its own")
        if one.device.type == "xla":
            self.tensors.append(one)
        elif not one.is_meta:
            self.host.append((one, one._version))
        held = [getattr(one, name, None) for name in ("_backward_hooks", "_post_accumulate_grad_hooks")]
        return [(x, f"hooks and attributes of {label}") for x in (*held, vars(one)) if x is not None]

    def _take_function(self, one: types.FunctionType, label: str) -> list[tuple[Any, str]]:
        found = [(one.__dict__["__wrapped__"], label)] if "__wrapped__" in one.__dict__ else []
        for name, cell in zip(one.__code__.co_freevars, one.__closure__ or ()):
            try:
                content = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            self._cells.append((cell, content))
            self._labels[id(cell)] = f"variable {name!r} of {label}"
            found.append((content, f"variable {name!r}"))
        if _is_library_file(one.__code__.co_filename):  # a decorator, say: what it was given is the user's
            return found
        named: set[str] = set()
        _names_in(one.__code__, named)
        self._names |= named
        found += [(one.__defaults__, f"defaults of {label}"), (one.__kwdefaults__, f"defaults of {label}")]
        held = one.__globals__
        names = tuple(sorted(n for n in named if n in held))
        self._parts.append((held, names, tuple(map(held.get, names)), None))
        self._labels[id(held)] = f"globals of {label}"
        return found + [(held[n], f"global {n!r}") for n in names]

    def _take_dict(self, one: dict[Any, Any], label: str) -> list[tuple[Any, str]]:
        if any(one is group for optimizer in self.optimizers for group in optimizer.param_groups):
            names = tuple(n for n in one if n != "lr")  # Note [Learning rates of frozen steps]
            self._parts.append((one, names, tuple(map(one.get, names)), len(one)))
        elif one:
            self._dicts.append((one, tuple(one.values())))
            if id(one) not in self._internal:
                self._sequences.append((one, tuple(one)))
        else:
            self._empty.append(one)
        return [(v, f"{label}[{k!r}]" if is_plain(k) else label) for k, v in one.items()] + [(k, label) for k in one]

    def _take_sequence(self, one: Any, label: str) -> list[tuple[Any, str]]:
        if one:
            self._sequences.append((one, tuple(one)))
        elif not isinstance(one, tuple):
            self._empty.append(one)
        return [(v, f"{label}[{i}]") for i, v in enumerate(one)]

    def _take_class(self, one: type, label: str, called: bool = True) -> list[tuple[Any, str]]:
        """called: code can name the class, and so make objects of it; else there is only an object of it."""
        if called:
            self._called.add(one)
        for cls in one.__mro__:
            if not _is_library_class(cls) and id(cls) not in map(id, (n[0] for n in self._named)):
                self._named.append((cls, vars(cls), set(), f"class {cls.__name__}"))
        return []

    def _take_object(self, one: Any, label: str) -> list[tuple[Any, str]]:
        kind: Any = type(one)
        if isinstance(one, Iterator):
            raise Unguardable(f"{label} is an iterator ({kind.__name__}): pass what it yields as an argument")
        if kind.__module__ == "numpy":
            return self._take_array(one, label)
        if kind.__module__.partition(".")[0] in _OPAQUE:
            return []
        if isinstance(one, torch.optim.Optimizer):
            self.optimizers.append(one)
        found: list[tuple[Any, str]] = []
        own = not _is_library_class(kind)
        if any(not _is_library_class(cls) for cls in kind.__mro__):
            found += self._take_class(kind, label, called=False)
        held = getattr(one, "__dict__", None)
        label = f"{label} ({kind.__name__})"
        if isinstance(one, nn.Module):
            self._internal.update(map(id, (one._parameters, one._buffers, one._modules)))
        if held is not None and (not own or isinstance(one, torch.optim.Optimizer)):
            self._labels[id(held)] = label
            self._dicts.append((held, tuple(held.values())))
            found += [(v, f"{label}.{name}") for name, v in held.items()]
        elif held is not None:
            self._labels[id(held)] = label
            always = {n for n in held if isinstance(one, nn.Module) and (n == "training" or n.startswith("_"))}
            self._named.append((one, held, set(), label))
            if always:
                names = tuple(sorted(always))
                self._parts.append((held, names, tuple(map(held.get, names)), None))
                found += [(held[n], f"{label}.{n}") for n in names]
        for cls in kind.__mro__:
            names = cls.__dict__.get("__slots__", ())
            for name in (names,) if isinstance(names, str) else names:
                if name not in ("__dict__", "__weakref__"):
                    self._slots.append((one, name, value := getattr(one, name, None)))
                    found.append((value, f"{label}.{name}"))
        return found

    def _take_array(self, one: Any, label: str) -> list[tuple[Any, str]]:
        if not hasattr(one, "shape"):
            return []
        if one.size > _MAX_ELEMENTS:
            raise Unguardable(f"{label} is a NumPy array of {one.size} elements: make it a tensor")
        self._arrays.append((one, one.copy()))
        return []

    def _follow_names(self) -> None:
        """Takes in the attributes that code names, until nothing new is found: functions found lead to more names."""
        size = (-1, -1, -1)
        while size != (size := (len(self._names), len(self._named), len(self._called))):
            for one, held, taken, label in list(self._named):
                for name in [n for n in held if n not in taken and self._is_read(one, n)]:
                    taken.add(name)
                    self._walk(held[name], f"{label}.{name}")
        for one, held, taken, label in self._named:
            names = tuple(sorted(taken))
            self._labels[id(held)] = label
            # An attribute that appears may be one that code asks for; classes and Python modules get some by themselves.
            count = None if isinstance(one, (type, types.ModuleType)) else len(held)
            self._parts.append((held, names, tuple(map(held.get, names)), count))

    def _is_read(self, one: Any, name: str) -> bool:
        if name in self._names:
            return True
        if not isinstance(one, type):
            return False
        if name in _CONSTRUCTORS:
            return any(issubclass(cls, one) for cls in self._called)
        return name == "forward" or (name.startswith("__") and callable(vars(one)[name]))


def _names_in(code: types.CodeType, found: set[str]) -> None:
    """Names that a function looks up, and strings that may be names, in nested functions too."""
    found.update(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _names_in(constant, found)
        elif isinstance(constant, str) and constant.isidentifier():
            found.add(constant)


def _is_library_file(file: str | None) -> bool:
    """Code that was typed in (`<stdin>`) is the user's."""
    return file is None or ((not file.startswith("<") or file.startswith("<frozen")) and frames.is_library(file))


@functools.cache
def _is_library_class(cls: Any) -> bool:
    module = sys.modules.get(cls.__module__)
    if cls.__module__ == "__main__" or module is None:
        return False
    return _is_library_file(getattr(module, "__file__", None))
