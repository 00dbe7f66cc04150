"""Machines for trials, as network namespaces of this one: their links go down, or are slow. Needs root and iproute2.

Nothing outside these namespaces is touched, and they are removed at the end. Where links are slow, frames between
machines are relayed by a process of this file, which holds each of them for a while: `tc netem` does it in the kernel,
which must be built with it.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_FRAME = 60_000  # bytes: few and large frames, so that the relay has little to do


def ip(*words: str) -> None:
    """One command of iproute2."""
    subprocess.run(["ip", *words], check=True)


class Network:
    """Machines as network namespaces, each with a link to a switch in a namespace of its own.

    `machines`: their number.
    `delay`: seconds that a frame takes from one to another; default None, as fast as the kernel's bridge is.
    """

    def __init__(self, machines: int, delay: float | None = None) -> None:
        """Make them."""
        self.delay = delay
        self.name = f"regard{os.getpid()}"
        self.switch = f"{self.name}-switch"
        self.made: list[str] = []
        self._namespace(self.switch)
        if delay is None:
            ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
            ip("-n", self.switch, "link", "set", "bridge", "up")
        for number in range(machines):
            self.add(number)
        if delay is not None:
            ports = [f"port{number}" for number in range(machines)]
            self._python(self.switch, "relay", str(delay), *ports)

    def _namespace(self, name: str) -> None:
        ip("netns", "add", name)
        self.made.append(name)
        ip("-n", name, "link", "set", "lo", "up")

    def machine(self, number: int) -> str:
        """The namespace of a machine."""
        return f"{self.name}-{number}"

    @staticmethod
    def address(number: int) -> str:
        """The address of a machine."""
        return f"10.77.0.{number + 1}"

    def add(self, number: int) -> None:
        """A machine with its link."""
        name, port = self.machine(number), f"port{number}"
        self._namespace(name)
        ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", port, "netns", self.switch)
        ip("-n", name, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        if self.delay is None:
            ip("-n", self.switch, "link", "set", port, "master", "bridge", "up")
        else:
            ip("-n", name, "link", "set", "eth0", "mtu", str(_FRAME))
            ip("-n", self.switch, "link", "set", port, "mtu", str(_FRAME), "up")
            self._python(name, "whole", "eth0").wait()

    @staticmethod
    def _python(namespace: str, *words: str) -> subprocess.Popen[bytes]:
        """A function of this file in a namespace, in a process of its own."""
        return subprocess.Popen(["ip", "netns", "exec", namespace, sys.executable, __file__, *words])

    def link(self, number: int, state: str) -> None:
        """Set the link of a machine up or down."""
        ip("-n", self.switch, "link", "set", f"port{number}", state)

    def processes(self, number: int) -> list[int]:
        """The processes of a machine."""
        return self._processes(self.machine(number))

    @staticmethod
    def _processes(name: str) -> list[int]:
        listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=True)
        return [int(pid) for pid in listed.stdout.split()]

    def remove(self) -> None:
        """End what is left in the namespaces, and remove them."""
        for name in self.made:
            for pid in self._processes(name):
                os.kill(pid, signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", name], check=False)


@contextmanager
def network(machines: int, delay: float | None = None) -> Iterator[Network]:
    """A network that is removed at the end, however that comes; arguments as of `Network`."""
    made = Network(machines, delay)
    try:
        yield made
    finally:
        made.remove()


def relay(delay: float, ports: list[str]) -> None:
    """Pass frames on to the port of their address, or to all others, each after `delay` seconds; never returns."""
    links = [socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) for _ in ports]  # 3: every protocol
    for link, port in zip(links, ports, strict=True):
        link.bind((port, 0))
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    behind: dict[bytes, socket.socket] = {}  # which port an address is behind
    held: list[tuple[float, int, bytes, list[socket.socket]]] = []
    count = 0
    while True:
        wait = max(0.0, held[0][0] - time.monotonic()) if held else None
        for link in select.select(links, [], [], wait)[0]:
            frame, (_, _, kind, *_) = link.recvfrom(1 << 17)
            if kind == socket.PACKET_OUTGOING:  # what this relay has sent
                continue
            behind[frame[6:12]] = link
            known = behind.get(frame[:6])
            to = [known] if known else [other for other in links if other is not link]
            count += 1
            heapq.heappush(held, (time.monotonic() + delay, count, frame, to))
        while held and held[0][0] <= time.monotonic():
            _, _, frame, to = heapq.heappop(held)
            for link in to:
                link.send(frame)


def whole(name: str) -> None:
    """Let a device send whole frames with their checksums, which the kernel leaves to devices that do it faster."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for command in (0x17, 0x1F, 0x24):  # ETHTOOL_STXCSUM, _STSO, _SGSO of linux/ethtool.h
            value = bytearray(struct.pack("II", command, 0))
            buffer = (ctypes.c_char * len(value)).from_buffer(value)
            request = struct.pack("16sP16x", name.encode(), ctypes.addressof(buffer))
            try:
                fcntl.ioctl(any_socket, 0x8946, request)  # SIOCETHTOOL
            except OSError as error:
                print(f"{name}, {command:#x}: {error}", file=sys.stderr)


if __name__ == "__main__":
    if sys.argv[1] == "whole":
        whole(sys.argv[2])
    else:
        relay(float(sys.argv[2]), sys.argv[3:])
