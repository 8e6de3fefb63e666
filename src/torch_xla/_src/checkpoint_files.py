"""Checkpoints straight to the device: files are mapped, and their tensors uploaded one at a time. Note [Mapped checkpoints]."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torch_xla._src.runtime import host_memory

_LARGE = 1 << 20  # bytes
PathLike = str | os.PathLike[str]
# What a directory is searched for, in this order: the names that Hugging Face's libraries give to checkpoints.
_IN_DIRECTORY = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
)
_NESTED = (
    "state_dict",
    "model",
    "model_state_dict",
)  # under which a training script keeps the weights among other things


def load(
    model: torch.nn.Module,
    path: PathLike | Sequence[PathLike],
    dtype: torch.dtype | str | None,
    strict: bool,
    device: Any,
) -> Any:
    """What `torch_xla.utils.load_checkpoint` does."""
    if not isinstance(model, torch.nn.Module):
        raise ValueError(f"a checkpoint is loaded into a module, not into {type(model).__name__}")
    if not (dtype is None or dtype == "auto" or (isinstance(dtype, torch.dtype) and dtype.is_floating_point)):
        raise ValueError(f'dtype is a floating point dtype, "auto" or None, not {dtype!r}')
    if torch.device(device).type != "xla":
        raise ValueError(f"load_checkpoint loads onto device xla, not {device}")
    found = read(path)
    ties = _ties(model)
    _refuse_lost_buffers(model, found, strict)
    replaced = any(tensor.device.type != "xla" for tensor in _state(model).values())
    wanted = {name: tensor.dtype for name, tensor in _state(model).items()}
    state = _uploaded(found, wanted, ties, dtype, device)
    for names in ties:
        given = next((state[name] for name in names if name in state), None)
        if given is not None:
            state |= {name: given for name in names if name not in state}
    with torch.no_grad():
        if not replaced and dtype is not None:
            _set_dtypes(model, state)
        before = {name: _owner(model, name) for name in wanted}
        try:
            result = model.load_state_dict(state, strict=strict, assign=replaced)
        except Exception:
            for name, tensor in before.items():  # some have been assigned already
                _put(model, name, tensor)
            raise
        del before
        del state
        _tie(model, ties)
        _move_rest(model, device)
    return result


def read(path: PathLike | Sequence[PathLike]) -> dict[str, torch.Tensor]:
    """The tensors of checkpoint files by name, on the CPU and mapped where the format allows: not read yet.

    ValueError if two files hold one name, or one holds no tensors. FileNotFoundError.
    """
    paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    if not paths:
        raise ValueError("there is no file to load: the list of paths is empty")
    tensors: dict[str, torch.Tensor] = {}
    for file in dict.fromkeys(file for given in paths for file in _files(Path(given))):
        for name, tensor in _tensors(file):
            if name in tensors:
                raise ValueError(f"{name} is in {file} and in a file before it")
            tensors[name] = tensor
    return tensors


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        known = [path / name for name in _IN_DIRECTORY if (path / name).is_file()]
        if not known:
            raise FileNotFoundError(f"{path} holds none of {', '.join(_IN_DIRECTORY)}: pass the files themselves")
        path = known[0]
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    if path.suffix != ".json":
        return [path]
    try:
        shards = json.loads(path.read_text())["weight_map"].values()
        return [path.parent / name for name in sorted(set(shards))]
    except (KeyError, TypeError, AttributeError, ValueError):
        raise ValueError(f"{path} is no index of a checkpoint: it has no weight_map from names to files") from None


def _tensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    if path.suffix == ".safetensors":
        yield from _safetensors(path)
        return
    # Files of torch.save before 1.6 are no zip archives, and cannot be mapped.
    try:
        data = torch.load(path, map_location="cpu", mmap=zipfile.is_zipfile(path), weights_only=True)
    except (EOFError, RuntimeError) as error:
        raise ValueError(f"{path} is no whole file of torch.save: {error or repr(error)}") from error
    for key in _NESTED:
        if isinstance(data, Mapping) and isinstance(data.get(key), Mapping):
            data = data[key]
            break
    if not isinstance(data, Mapping) or not any(isinstance(x, torch.Tensor) for x in data.values()):
        raise ValueError(f"{path} holds no state dict: load it with torch.load and pass what it has to load_state_dict")
    for name, x in data.items():
        if isinstance(x, torch.Tensor):
            yield name, x.detach()


def _safetensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise ImportError(f"{path} is read by the package safetensors, which is not installed") from None
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            for name in file.keys():  # noqa: SIM118 (it is no mapping)
                yield name, file.get_tensor(name)
    except SafetensorError as error:
        raise ValueError(f"{path} is no safetensors file: {error}") from error


def _state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by name: every name, also of tied ones."""
    return {name: x for name, x in model.state_dict(keep_vars=True).items() if isinstance(x, torch.Tensor)}


def _ties(model: torch.nn.Module) -> list[list[str]]:
    """The names of parameters and buffers that are one tensor under several names."""
    names: dict[int, list[str]] = {}
    for name, tensor in _state(model).items():
        names.setdefault(id(tensor), []).append(name)
    return [group for group in names.values() if len(group) > 1]


def _tie(model: torch.nn.Module, ties: list[list[str]]) -> None:
    """Makes tied names one tensor again, after each has been assigned its own."""
    for first, *others in ties:
        tensor = _owner(model, first)
        for name in others:
            if _owner(model, name) is not tensor:
                _put(model, name, tensor)


def _put(model: torch.nn.Module, name: str, tensor: torch.Tensor) -> None:
    module, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(module), leaf, tensor)


def _owner(model: torch.nn.Module, name: str) -> Any:
    module, _, leaf = name.rpartition(".")
    return getattr(model.get_submodule(module), leaf)


def _refuse_lost_buffers(model: torch.nn.Module, found: dict[str, torch.Tensor], strict: bool) -> None:
    """RuntimeError for buffers without data that no checkpoint can hold."""
    state = _state(model)
    lost = [n for n, b in model.named_buffers() if b.is_meta and n not in state and n not in found]
    if strict and lost:
        raise RuntimeError(
            f"{', '.join(lost)}: on device meta, and not in checkpoints (buffers that are not persistent). Set them before "
            "loading, or make the model on the CPU"
        )


def _uploaded(
    found: dict[str, torch.Tensor], wanted: dict[str, torch.dtype], ties: list[list[str]], dtype: Any, device: Any
) -> dict[str, torch.Tensor]:
    """Those of `found` that the model has on the device, in its dtype or `dtype`; the others as they are.

    Casts are done on the device, so that the host never holds a tensor twice.
    """
    state: dict[str, torch.Tensor] = {}
    known: dict[Any, torch.Tensor] = {}  # names that are tied in the model may be one tensor in the file
    group_of = {name: number for number, names in enumerate(ties) for name in names}
    while found:
        name = next(iter(found))
        host = found.pop(name)  # and is unmapped with the last of its file
        if name not in wanted:
            state[name] = host
            continue
        target = host.dtype if dtype == "auto" else wanted[name] if dtype is None else dtype
        if dtype not in (None, "auto") and not host.is_floating_point():
            target = host.dtype
        key = group_of.get(name, name), host.data_ptr(), host.shape, host.stride(), host.dtype
        if key not in known:
            known[key] = _on_device(host, target, device)
        state[name] = known[key]
    return state


def _on_device(host: torch.Tensor, dtype: torch.dtype, device: Any) -> torch.Tensor:
    """A tensor on the device. Waits for a cast: what it is made of would be kept until then, of many tensors at once."""
    uploaded = host.to(device)
    if dtype is host.dtype:
        return uploaded
    from torch_xla._src.graph.inspect import waiter

    cast = uploaded.to(dtype)
    del uploaded
    waiter(cast)()
    if host.nbytes >= _LARGE:
        host_memory.give_back()  # on CPU a hole is left, into which the next tensor does not fit
    return cast


def _set_dtypes(model: torch.nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Gives parameters that are written to in place the dtypes of what is loaded; they stay the objects they are."""
    for name, tensor in _state(model).items():
        if name in state and state[name].dtype is not tensor.dtype:
            tensor.data = tensor.data.to(state[name].dtype)


def _move_rest(model: torch.nn.Module, device: Any) -> None:
    """Moves what was not loaded and has data."""
    moved: dict[int, tuple[Any, Any]] = {}  # by identity, since names may be tied

    def move(tensor: Any) -> Any:
        if id(tensor) not in moved:
            new = tensor.detach().to(device)
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            moved[id(tensor)] = tensor, torch.nn.Parameter(new, tensor.requires_grad) if is_parameter else new
        return moved[id(tensor)][1]

    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is not None and tensor.device.type not in ("xla", "meta"):
                    held[name] = move(tensor)
