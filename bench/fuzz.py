"""Foreign bytes: everything that reads them is given damaged ones; prints what is not our error."""

from __future__ import annotations

import argparse
import base64
import logging
import sys
import time
import traceback
from importlib import import_module
from random import Random
from typing import Any


def main(argv: list[str]) -> None:
    """Print each fault and the bytes that show it; exit code 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m bench fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="time for all readers")
    parser.add_argument("--reader", help="one reader alone; default: all")
    parser.add_argument("--seed", type=int, default=0, help="of the changes")
    parser.add_argument(
        "--atheris",
        action="store_true",
        help="let atheris, if it is installed, choose the changes by the code that they reach; "
        "needs --reader, and ends at the first fault",
    )
    arguments = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)
    atheris: Any = None
    if arguments.atheris:
        try:
            atheris = import_module("atheris")
        except ImportError:
            sys.exit("bench: atheris is not installed: pip install atheris, or leave --atheris out")
        with atheris.instrument_imports(include=["testnuc"]):
            module = import_module("tests.fuzz.readers")
    else:
        # the readers belong to the tests, which a checkout has and an installation has not
        module = import_module("tests.fuzz.readers")
    errors = (import_module("testnuc.errors").TestNUCError,)
    readers = module.readers()
    if arguments.reader is not None:
        if arguments.reader not in readers:
            sys.exit(f"bench: no reader {arguments.reader!r}; choose from {', '.join(readers)}")
        readers = {arguments.reader: readers[arguments.reader]}
    if atheris is not None:
        if arguments.reader is None:
            sys.exit("bench: --atheris needs --reader")
        reader = readers[arguments.reader]
        atheris.Setup(
            [sys.argv[0], f"-max_total_time={arguments.seconds:.0f}"],
            lambda data: module.tried(reader, data, errors),
        )
        atheris.Fuzz()
        return
    _fuzz(module, readers, errors, arguments)


def _fuzz(module: Any, readers: dict[str, Any], errors: tuple[Any, ...], arguments: Any) -> None:
    """Give each reader its part of the time."""
    faults = 0
    for name, reader in readers.items():
        examples, slowest, seen = 0, 0.0, set[str]()
        ends = time.perf_counter() + arguments.seconds / len(readers)
        while time.perf_counter() < ends:
            random = Random(f"{arguments.seed} {name} {examples}")
            examples += 1
            data = module.changed(random, random.choice(reader.samples))
            try:
                seconds = module.tried(reader, data, errors)
            except Exception as error:  # noqa: BLE001 - what is looked for
                frame = traceback.extract_tb(error.__traceback__)[-1]
                fault = f"{type(error).__name__} at {frame.filename}:{frame.lineno}"
            else:
                slowest = max(slowest, seconds)
                fault = f"more than {module.LONGEST:g} s" if seconds > module.LONGEST else ""
            if fault and fault not in seen:
                seen.add(fault)
                print(f"{name}: {fault} for {base64.b64encode(data)[:2000].decode()}", flush=True)
        faults += len(seen)
        print(f"{name}: {examples:,} examples, the slowest {slowest:.2f} s", flush=True)
    print(f"{faults} faults")
    if faults:
        sys.exit(1)
