"""What of Python's state a function can read: found by walking from it, and compared with what it was.

Note [What a frozen step guards]
A frozen step (Note [Frozen steps]) does not run its Python, so whatever that Python would have read has to be what it was.
From the function and its arguments the walk follows closure cells, defaults, globals and attributes that the code names,
containers, attributes of modules, optimizers and other objects, hooks, and the user's own functions and classes. All that
it finds is compared at each call: plain values by type and value, other objects by identity, tensors of the CPU by version
and address. That something the code names has appeared (an attribute of a subclass, a global that hides a builtin) is
noticed too, and so is another function in place of one that the code names in an installed module.

Of objects of the user's own classes, only attributes count whose names appear in the code that can run (as a name or as a
string), so that a trainer may count its steps outside of the step; all of them if that code computes names (`vars`,
`getattr(x, f"part_{n}")`). Of installed packages, only the methods are read that a class of the user's inherits: what their
code keeps in globals of its own, or reads of an object that it is given, is not guarded. Nor are files, clocks,
environment variables, and the memory of CPU tensors where it is written through NumPy or `.data`. What cannot be compared
(an iterator, a generator of random numbers on the host, a large NumPy array) keeps a step from being frozen.
"""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import dis
import enum
import functools
import operator
import random
import sys
import threading
import types
import weakref
from array import array as Array
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import nn

from torch_xla._src.graph.recorder import same_constant
from torch_xla._src.runtime import frames

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_ATOMS = (
    *_PLAIN, torch.dtype, torch.device, torch.layout, torch.memory_format, range, slice, type(Ellipsis), enum.Enum,
    types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType, types.GetSetDescriptorType,
    types.MemberDescriptorType,
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
_BYTES = (bytearray, Array, memoryview)
_CONSTRUCTORS = {"__init__", "__new__", "__post_init__"}
_METHODS = ("forward", "step", "__call__")  # of installed classes: those that a step is likely to reach
_READ_ALL = {"vars", "__dict__", "eval", "exec", "attrgetter", "methodcaller", "__getattribute__"}
# Modules of classes whose methods read no attributes.
_NAMELESS = {"builtins", "typing", "abc", "enum", "collections.abc"}
_EMPTY = object()  # stands for the content of a cell that has none
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


def _always() -> bool:
    return True


def _never() -> bool:
    return False


class _Part:
    """Entries of a mapping that are read. appeared: whether one that is read has come, asked when the size has changed."""

    __slots__ = ("appeared", "held", "names", "size", "values")

    def __init__(self, held: Mapping[str, Any], names: tuple[str, ...], appeared: Callable[[], bool] = _always) -> None:
        self.held, self.names, self.appeared = held, names, appeared
        self.values, self.size = tuple(map(held.get, names)), len(held)


class Reach:
    """What a function reaches, as it is when this is made.

    tensors: of device xla. host: of the CPU, with their versions and addresses. optimizers: those of torch.optim.
    """

    def __init__(self, function: Any, objects: Iterable[Any] = ()) -> None:
        self.tensors: list[torch.Tensor] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.host: list[tuple[torch.Tensor, int, int]] = []
        self._contents: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._seen: dict[int, Any] = {}
        self._names: set[str] = set()
        self._called: set[type] = set()
        self._internal: set[int] = set()  # dicts of torch.nn.Module: each value belongs to one key
        self._reads_all = False  # whether code reads attributes by names that it computes
        # (of what, its values); those read in part
        self._dicts: list[tuple[dict[Any, Any], tuple[Any, ...]]] = []
        self._sequences: list[tuple[Any, tuple[Any, ...]]] = []
        self._parts: list[_Part] = []
        self._cells: list[tuple[types.CellType, Any]] = []
        self._slots: list[tuple[Any, str, Any]] = []
        self._reads: list[tuple[Callable[[], Any], Any, str]] = []  # what is read by a call, the value, what it is
        self._libraries: list[types.ModuleType] = []
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

    def written(self) -> str | None:
        """As `change`, and compares the contents of small CPU tensors, which `.data` changes without a new version."""
        for tensor, before in self._contents:
            if tensor.shape != before.shape or not torch.equal(tensor.detach(), before):
                return f"a CPU tensor ({self._labels[id(tensor)]})"
        return self.change()

    def change(self) -> str | None:
        """What is no longer as it was, or None. Fast while all is."""
        is_ = operator.is_
        if any(self._empty):
            return self._describe(next(filter(None, self._empty)))
        for part in self._parts:
            held, names, before = part.held, part.names, part.values
            if len(held) != part.size:
                if part.appeared():
                    return self._describe(held)
                part.size = len(held)
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
            if not same(_content(cell), before):
                return self._describe(cell)
        for one, name, before in self._slots:
            if not same(getattr(one, name, None), before):
                return self._describe(one, name)
        for read, before, label in self._reads:
            if not same(read(), before):
                return label
        for tensor, version, pointer in self.host:
            if (version >= 0 and tensor._version != version) or tensor.data_ptr() != pointer:
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
            if type(one) in (types.BuiltinFunctionType, types.MethodWrapperType):
                one = one.__self__  # `d.get`: what it is a method of
            elif type(one) in weakref.ProxyTypes:
                one = one.__repr__.__self__
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
            else:
                self._libraries.append(one)
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
            self.host.append((one, -1 if one.is_inference() else one._version, one.data_ptr()))
            if one.numel() <= _MAX_ELEMENTS:
                self._contents.append((one, one.detach().clone()))
        held = [getattr(one, name, None) for name in ("_backward_hooks", "_post_accumulate_grad_hooks")]
        return [(x, f"hooks and attributes of {label}") for x in (*held, vars(one)) if x is not None]

    def _take_function(self, one: types.FunctionType, label: str) -> list[tuple[Any, str]]:
        found = [(one.__dict__["__wrapped__"], label)] if "__wrapped__" in one.__dict__ else []
        for name, cell in zip(one.__code__.co_freevars, one.__closure__ or ()):
            content = _content(cell)
            self._cells.append((cell, content))
            self._labels[id(cell)] = f"variable {name!r} of {label}"
            if name == "__class__" and isinstance(content, type):
                # What super() needs: nobody makes objects of it by that.
                self._take_class(content, label, called="__class__" in one.__code__.co_names)
            elif content is not _EMPTY:
                found.append((content, f"variable {name!r}"))
        if _is_library_file(one.__code__.co_filename):  # a decorator, say: what it was given is the user's
            return found
        named: set[str] = set()
        names_in(one.__code__, named)
        self._names |= named
        self._reads_all |= not named.isdisjoint(_READ_ALL) or _computes_names(one.__code__)
        found += [(one.__defaults__, f"defaults of {label}"), (one.__kwdefaults__, f"defaults of {label}")]
        held = one.__globals__
        names = tuple(sorted(n for n in named if n in held))
        missing = named.difference(names)  # a global that appears may hide one of the builtins
        self._parts.append(_Part(held, names, lambda: not missing.isdisjoint(held)))
        self._labels[id(held)] = f"globals of {label}"
        found += [(held[n], f"global {n!r}") for n in names]
        return found + [(module, f"module {module.__name__}") for module in _imported(named, held)]

    def _take_dict(self, one: dict[Any, Any], label: str) -> list[tuple[Any, str]]:
        if any(one is group for optimizer in self.optimizers for group in optimizer.param_groups):
            followed = type(one.get("lr")) is float  # Note [Learning rates of frozen steps]
            names = tuple(n for n in one if n != "lr" or not followed)
            self._parts.append(_Part(one, names))
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
            if _is_library_class(cls):
                self._names |= _names_of_class(cls)
            elif id(cls) not in map(id, (n[0] for n in self._named)):
                self._named.append((cls, vars(cls), set(), f"class {cls.__name__}"))
        return []

    def _take_object(self, one: Any, label: str) -> list[tuple[Any, str]]:
        kind: Any = type(one)
        if isinstance(one, Iterator):
            raise Unguardable(f"{label} is an iterator ({kind.__name__}): pass what it yields as an argument")
        if isinstance(one, (torch.Generator, random.Random)) or kind.__module__.startswith("numpy.random"):
            raise Unguardable(f"{label} is a generator of random numbers of the host ({kind.__name__})")
        if kind.__module__ == "numpy":
            return self._take_array(one, label)
        if isinstance(one, (weakref.ref, contextvars.ContextVar, threading.local, types.MappingProxyType, *_BYTES)):
            return self._take_holder(one, label)
        if kind.__module__.partition(".")[0] in _OPAQUE:
            return []
        if isinstance(one, torch.optim.Optimizer):
            self.optimizers.append(one)
        found: list[tuple[Any, str]] = []
        own = not _is_library_class(kind)
        if any(not _is_library_class(cls) for cls in kind.__mro__):
            found += self._take_class(kind, label, called=False)
        else:
            self._take_methods(kind)
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
            always |= set(held) if dataclasses.is_dataclass(one) else set()  # which its generated methods read
            self._named.append((one, held, set(), label))
            if always:
                names = tuple(sorted(always))
                self._parts.append(_Part(held, names, _never))
                found += [(held[n], f"{label}.{n}") for n in names]
        for cls in kind.__mro__:
            names = cls.__dict__.get("__slots__", ())
            for name in (names,) if isinstance(names, str) else names:
                if name not in ("__dict__", "__weakref__"):
                    self._slots.append((one, name, value := getattr(one, name, None)))
                    found.append((value, f"{label}.{name}"))
        return found

    def _take_methods(self, kind: type) -> None:
        """Notes the methods of an installed class that may be replaced, though not what their code reads."""
        for cls in kind.__mro__:
            names = tuple(n for n in _METHODS if n in vars(cls))
            if cls is not object and names and id(cls) not in self._seen:
                self._seen[id(cls)] = cls
                self._labels[id(vars(cls))] = f"class {cls.__name__}"
                self._parts.append(_Part(vars(cls), names, _never))

    def _take_holder(self, one: Any, label: str) -> list[tuple[Any, str]]:
        """Notes an object of the interpreter that holds something: what, a call tells."""
        if isinstance(one, types.MappingProxyType):
            if one:
                raise Unguardable(f"{label} shows a dict that cannot be reached from it")
            return []
        if isinstance(one, _BYTES):
            if len(one) > _MAX_ELEMENTS:
                raise Unguardable(f"{label} is a {type(one).__name__} of {len(one)} elements: make it a tensor")
            self._reads.append((functools.partial(bytes, one), bytes(one), label))
            return []
        read: Callable[[], Any] = one
        if isinstance(one, contextvars.ContextVar):
            read = functools.partial(one.get, None)
        elif isinstance(one, threading.local):
            read = functools.partial(vars, one)  # of the thread that asks
        self._reads.append((read, content := read(), label))
        return [(content, label)]

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
            # An attribute that appears may be one that code asks for; classes and Python modules get others by themselves.
            if isinstance(one, (type, types.ModuleType)):
                self._parts.append(_Part(held, names, functools.partial(self._gained, one, held, taken)))
            else:
                self._parts.append(_Part(held, names))
        for module in self._libraries:  # its code is not read, but another function may be put in place of one
            held = vars(module)
            self._labels[id(held)] = f"module {module.__name__}"
            self._parts.append(_Part(held, tuple(sorted(n for n in self._names if n in held)), _never))

    def _gained(self, one: Any, held: Mapping[str, Any], taken: set[str]) -> bool:
        return any(n not in taken and self._is_read(one, n) for n in list(held))

    def _is_read(self, one: Any, name: str) -> bool:
        if name in self._names:
            return True
        if not isinstance(one, type):
            return self._reads_all and not isinstance(one, types.ModuleType)
        if self._reads_all and not name.startswith("__"):
            return True
        if name in _CONSTRUCTORS:
            return any(issubclass(cls, one) for cls in self._called)
        return name == "forward" or (
            name.startswith("__") and callable(vars(one)[name]) and not _is_generated(one, name)
        )


def _is_generated(cls: type, name: str) -> bool:
    """Whether a method was written by `dataclass`: it reads the fields of its object, and nothing else."""
    code = getattr(vars(cls)[name], "__code__", None)
    wrapped = getattr(vars(cls)[name], "__wrapped__", None)  # __repr__, guarded against recursion
    code = getattr(wrapped, "__code__", code)
    return "__dataclass_fields__" in vars(cls) and code is not None and code.co_filename == "<string>"


def names_in(code: types.CodeType, found: set[str]) -> None:
    """Names that a function looks up, and strings that may be names, in nested functions too."""
    found.update(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names_in(constant, found)
        else:
            strings = constant if isinstance(constant, (tuple, frozenset)) else (constant,)
            found.update(s for s in strings if isinstance(s, str) and s.isidentifier())


def _computes_names(code: types.CodeType) -> bool:
    """Whether a function asks for an attribute whose name is no constant."""
    if not {"getattr", "hasattr"}.isdisjoint(code.co_names):
        ignored = ("PRECALL", "EXTENDED_ARG", "CACHE", "PUSH_NULL")
        rows = [row for row in dis.get_instructions(code) if row.opname not in ignored]
        for start in (n for n, row in enumerate(rows) if row.argval in ("getattr", "hasattr")):
            call = next((n for n in range(start, len(rows)) if rows[n].opname.startswith("CALL")), None)
            if call is None or rows[call - ((rows[call].arg or 0) - 1)].opname != "LOAD_CONST":
                return True
    return any(_computes_names(c) for c in code.co_consts if isinstance(c, types.CodeType))


def _imported(named: set[str], held: Mapping[str, Any]) -> list[types.ModuleType]:
    """The user's Python modules that a function with these globals may import when it runs."""
    package = held.get("__package__") or ""
    prefixes = [""]
    while package:
        prefixes.append(f"{package}.")
        package = package.rpartition(".")[0]
    modules = {id(m): m for n in named for p in prefixes if (m := sys.modules.get(p + n)) is not None}
    return [
        m
        for m in modules.values()
        if isinstance(m, types.ModuleType) and not _is_library_file(m.__dict__.get("__file__"))
    ]


@functools.cache
def _names_of_class(cls: type) -> frozenset[str]:
    """Names in the methods of an installed class, which an object of a class of the user's may have as attributes."""
    found: set[str] = set()
    if cls is not nn.Module and cls is not torch.optim.Optimizer and cls.__module__ not in _NAMELESS:
        for value in vars(cls).values():
            for method in (value, getattr(value, "__func__", None), getattr(value, "fget", None)):
                if isinstance(method, types.FunctionType):
                    names_in(method.__code__, found)
    return frozenset(found)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned, or deleted
        return _EMPTY


def _is_library_file(file: str | None) -> bool:
    """Code that was typed in (`<stdin>`) is the user's."""
    return file is None or ((not file.startswith("<") or file.startswith("<frozen")) and frames.is_library(file))


@functools.cache
def _is_library_class(cls: Any) -> bool:
    module = sys.modules.get(cls.__module__)
    if cls.__module__ == "__main__" or module is None:
        return False
    return _is_library_file(getattr(module, "__file__", None))
