"""NCCL's topology files (``NCCL_TOPO_FILE``, ``NCCL_TOPO_DUMP_FILE``) as a ``Machine``.

The format is public in NCCL's sources (``src/graph/xml.cc``): ``system`` holds a ``cpu`` for every NUMA node, these hold
``pci`` elements, nested where there are PCIe switches, and in them are ``gpu`` and ``nic`` with ``net``. Cloud providers
ship such files for machines whose sysfs tells nothing. A file is input from outside: no document type, no entities,
limits on size and depth.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from ..errors import InvalidArgument
from .machine import Machine
from .pci import Gpu
from .place import Place
from .ports import ACTIVE, RdmaDevice, RdmaPort

MAX_BYTES = 4 << 20
MAX_DEPTH = 32
MAX_ELEMENTS = 20_000


def read_nccl_xml(path: Path) -> Machine:
    """The machine that a file describes. ``InvalidArgument`` with the place when it is not such a file."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidArgument(f"{path}: {error.strerror}") from None
    return parse_nccl_xml(data, str(path))


def parse_nccl_xml(data: bytes, name: str = "NCCL topology") -> Machine:
    """The machine that a text describes.

    Nets of one card and name are one device's ports. States are not in the file: what is listed counts as active, as
    NCCL lists nothing else. Two devices below one ``pci`` element share a switch; the file does not tell root complexes
    apart, so other devices of a ``cpu`` are in the class NUMA.
    """
    if len(data) > MAX_BYTES:
        raise InvalidArgument(f"{name}: more than {MAX_BYTES} bytes")
    tree = _Tree(name).parse(data)
    if tree.tag != "system":
        raise InvalidArgument(f"{name}: its element is <{tree.tag}>, not <system>")
    gpus: list[tuple[Place, str]] = []
    ports: dict[str, tuple[Place, list[RdmaPort]]] = {}
    for element, place in _walk(tree, Place(), name):
        if element.tag == "gpu":
            gpus.append((place, element.parent_value("device")))
        elif element.tag == "net" and place.bus_id:  # others are emulated, or reached through no device
            device = element.values.get("name", "")
            number = _whole(element, "port", name, 1)
            speed = _whole(element, "speed", name, 0)
            port = RdmaPort(number, "", ACTIVE, 0, speed or None)
            ports.setdefault(device, (place, []))[1].append(port)
    gpus.sort(key=lambda item: item[0].bus_id)
    devices = [RdmaDevice(device, place, tuple(found)) for device, (place, found) in sorted(ports.items())]
    return Machine(tuple(Gpu(i, place, model) for i, (place, model) in enumerate(gpus)), tuple(devices))


@dataclass
class _Element:
    tag: str
    values: dict[str, str]
    parent: _Element | None = None
    children: list[_Element] = field(default_factory=list)

    def parent_value(self, name: str) -> str:
        return self.parent.values.get(name, "") if self.parent else ""


class _Tree:
    """expat, with everything that such a file does not need refused."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._top = _Element("", {})
        self._stack = [self._top]
        self._count = 0
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = lambda _tag: self._stack.pop()
        self._parser.StartDoctypeDeclHandler = self._refuse
        self._parser.EntityDeclHandler = self._refuse

    def parse(self, data: bytes) -> _Element:
        try:
            self._parser.Parse(data, True)
        except expat.ExpatError as error:
            raise InvalidArgument(f"{self._name}: not XML: {error}") from None
        return self._top.children[0]

    def _start(self, tag: str, values: dict[str, str]) -> None:
        self._count += 1
        if self._count > MAX_ELEMENTS or len(self._stack) > MAX_DEPTH:
            raise InvalidArgument(f"{self._name}: more than {MAX_ELEMENTS} elements, or {MAX_DEPTH} within one another")
        parent = self._stack[-1]
        element = _Element(tag, values, parent)
        parent.children.append(element)
        self._stack.append(element)

    def _refuse(self, *_: object) -> None:
        raise InvalidArgument(f"{self._name}: a document type or entities: not in a topology file")


def _walk(element: _Element, above: Place, name: str) -> Iterator[tuple[_Element, Place]]:
    """Every element below with the place of the device that it is part of."""
    for child in element.children:
        place = above
        if child.tag == "cpu":
            numa = _whole(child, "numaid", name, -1)
            place = Place(numa=numa if numa >= 0 else None)
        elif child.tag == "pci":
            bridges = (*above.bridges, above.bus_id) if above.bus_id else above.bridges
            place = Place(_bus_id(child, name), "", bridges, above.numa)
        yield child, place
        yield from _walk(child, place, name)


def _bus_id(element: _Element, name: str) -> str:
    text = element.values.get("busid", "").lower()
    if not text or len(text) > 32 or not text.isprintable():
        raise InvalidArgument(f"{name}: <pci> with busid={text[:40]!r}")
    return text


def _whole(element: _Element, key: str, name: str, missing: int) -> int:
    text = element.values.get(key)
    if text is None:
        return missing
    try:
        return int(text, 0)
    except ValueError:
        raise InvalidArgument(f"{name}: <{element.tag}> with {key}={text[:40]!r}: not a whole number") from None
