#!/usr/bin/env python3
"""Compiles the kernels beside it to PTX, with NVRTC 12.0 and no GPU.

    python3 -m venv venv && venv/bin/pip install 'nvidia-cuda-nvrtc-cu12==12.0.*'
    venv/bin/python compile.py [--check]

With --check it writes nothing and fails if a .ptx differs from what its .cu gives.
"""
import ctypes
import pathlib
import re
import sys

OPTIONS = ["--gpu-architecture=compute_75", "--fmad=false", "--std=c++17", "--device-int128", "--generate-line-info"]


def library():
    for folder in map(pathlib.Path, sys.path):
        for path in folder.glob("nvidia/cuda_nvrtc/lib/libnvrtc.so.12"):
            return ctypes.CDLL(str(path))
    sys.exit("no NVRTC here: pip install 'nvidia-cuda-nvrtc-cu12==12.0.*'")


def text(nvrtc, program, what):
    size = ctypes.c_size_t()
    assert getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
    buffer = ctypes.create_string_buffer(size.value)
    assert getattr(nvrtc, f"nvrtcGet{what}")(program, buffer) == 0
    return buffer.value.decode()


def compiled(nvrtc, source):
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.read_bytes(), source.name.encode(), 0, None, None) == 0
    options = (ctypes.c_char_p * len(OPTIONS))(*[option.encode() for option in OPTIONS])
    if nvrtc.nvrtcCompileProgram(program, len(OPTIONS), options) != 0:
        sys.exit(text(nvrtc, program, "ProgramLog"))
    # NVRTC puts the folder that it runs in before the name: not part of what is compiled.
    return re.sub(r'^(\s*\.file\s+\d+ ").*/', r'\1', text(nvrtc, program, "PTX"), flags=re.MULTILINE)


def main():
    nvrtc = library()
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    if (major.value, minor.value) != (12, 0):
        sys.exit(f"NVRTC {major.value}.{minor.value}: drivers may refuse its PTX, 12.0 is wanted")
    stale = []
    for source in sorted(pathlib.Path(__file__).parent.glob("*.cu")):
        target = source.with_suffix(".ptx")
        ptx = compiled(nvrtc, source)
        if "--check" not in sys.argv:
            target.write_text(ptx)
        elif not target.exists() or target.read_text() != ptx:
            stale.append(target.name)
    if stale:
        sys.exit(f"not what its source gives: {', '.join(stale)}")


main()
