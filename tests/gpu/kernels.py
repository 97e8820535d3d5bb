#!/usr/bin/env python3
"""Compiles the CUDA kernels to the PTX that is committed beside them, with pinned compilers and without a GPU.

    tests/gpu/kernels.py            # writes *.ptx, and resources.tsv (registers, spills, shared memory by architecture)
    tests/gpu/kernels.py --check    # writes nothing; fails if a file differs from what its source gives

The compilers come from PyPI, into target/kernels. NVRTC is that of CUDA 12.0: a driver refuses PTX newer than itself.
That compiler may give other code from one run to the next (it joins loads in an order that depends on where its memory lies);
so each source is compiled in several processes before its PTX is written, and one that differs is refused.
The PTX is assembled for every architecture from sm_75 up, by the ptxas of 12.0 and by a new one. Fails on spilled registers.
"""
import ctypes
import pathlib
import re
import subprocess
import sys
import venv

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = ROOT / "target" / "kernels"
SHIPPED = ROOT / "src" / "cuda" / "kernels"
# Folders of kernels, and what differs from the options of all.
FOLDERS = {
    SHIPPED: [],
    # With lines, as the messages of the software device name them; some of these spill, and none is shipped.
    ROOT / "tests" / "software-cuda" / "bugs" / "kernels": ["--device-int128", "--generate-line-info"],
}
OPTIONS = ["--gpu-architecture=compute_75", "--fmad=false", "--std=c++17"]
PACKAGES = {
    "12.0": ["nvidia-cuda-nvrtc-cu12==12.0.140", "nvidia-cuda-nvcc-cu12==12.0.140"],
    "13.5": ["nvidia-cuda-nvcc==13.5.37"],
}
# The file of NVRTC, and of the assemblers: oldest first.
NVRTC = "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"
ASSEMBLERS = {"12.0": "nvidia/cuda_nvcc/bin/ptxas", "13.5": "nvidia/cu13/bin/ptxas"}
RUNS = 10
ARCHITECTURES = {
    "12.0": ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90"],
    "13.5": ["sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120"],
}


def tool(release, path):
    """A file of the pinned packages, which are installed first if they are not there."""
    place = TOOLS / release
    if not (place / "done").exists():
        print(f"installing {', '.join(PACKAGES[release])}", file=sys.stderr)
        venv.create(place, with_pip=True, clear=True)
        subprocess.run([place / "bin" / "pip", "install", "--quiet", "--no-deps", *PACKAGES[release]], check=True)
        (place / "done").touch()
    for found in place.glob(f"lib/python*/site-packages/{path}"):
        return found
    sys.exit(f"{path} is not in {PACKAGES[release]}")


def text(nvrtc, program, what):
    size = ctypes.c_size_t()
    assert getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
    buffer = ctypes.create_string_buffer(size.value)
    assert getattr(nvrtc, f"nvrtcGet{what}")(program, buffer) == 0
    return buffer.value.decode()


def strings(values):
    return (ctypes.c_char_p * len(values))(*values)


def compiled(nvrtc, source, more):
    headers = sorted(source.parent.glob("*.cuh"))
    program = ctypes.c_void_p()
    created = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program),
        source.read_bytes(),
        source.name.encode(),
        len(headers),
        strings([header.read_bytes() for header in headers]),
        strings([header.name.encode() for header in headers]),
    )
    assert created == 0, created
    options = [option.encode() for option in OPTIONS + more]
    if nvrtc.nvrtcCompileProgram(program, len(options), strings(options)) != 0:
        sys.exit(f"{source}:\n{text(nvrtc, program, 'ProgramLog')}")
    # NVRTC puts the folder that it runs in before the name: not part of what is compiled.
    return re.sub(r'^(\s*\.file\s+\d+ ").*/', r"\1", text(nvrtc, program, "PTX"), flags=re.MULTILINE)


def differs(source, more, ptx):
    """Whether the compiler gives something else in another process."""
    command = [sys.executable, __file__, "--print", source, *more]
    return any(subprocess.run(command, capture_output=True, check=True).stdout.decode() != ptx for _ in range(RUNS))


def resources(ptx):
    """One line for each kernel, assembler and architecture; and what is wrong with them."""
    lines, faults = [], []
    for release, path in ASSEMBLERS.items():
        assembler = tool(release, path)
        for architecture in ARCHITECTURES[release]:
            command = [assembler, "-v", f"-arch={architecture}", ptx, "-o", "/dev/null"]
            run = subprocess.run(command, capture_output=True, text=True)
            if run.returncode != 0:
                sys.exit(f"ptxas {release} {architecture}: {run.stdout}{run.stderr}")
            for part in re.split(r"Compiling entry function '", run.stderr)[1:]:
                name = part.split("'")[0]

                def number(pattern):
                    found = re.search(pattern, part)
                    return int(found.group(1)) if found else 0

                registers = number(r"Used (\d+) registers")
                stack = number(r"(\d+) bytes stack frame")
                spills = number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads")
                shared = number(r"(\d+) bytes smem")
                lines.append(f"{name}\t{release}\t{architecture}\t{registers}\t{shared}\t{stack}\t{spills}")
                if spills:
                    faults.append(f"{name} spills {spills} bytes of registers ({release}, {architecture})")
    return lines, faults


def main():
    nvrtc = ctypes.CDLL(str(tool("12.0", NVRTC)))
    if sys.argv[1:2] == ["--print"]:
        print(compiled(nvrtc, pathlib.Path(sys.argv[2]), sys.argv[3:]), end="")
        return
    check = "--check" in sys.argv
    faults = []

    def put(target, content):
        if not check:
            target.write_text(content)
        elif not target.exists() or target.read_text() != content:
            faults.append(f"{target.relative_to(ROOT)} is not what its source gives")

    table = ["kernel\tptxas\tarchitecture\tregisters\tshared\tstack\tspills"]
    for folder, more in FOLDERS.items():
        for source in sorted(folder.glob("*.cu")):
            ptx = compiled(nvrtc, source, more)
            if not check and differs(source, more, ptx):
                faults.append(f"{source.relative_to(ROOT)} gives other PTX from run to run")
            put(source.with_suffix(".ptx"), ptx)
            if folder == SHIPPED:
                lines, wrong = resources(source.with_suffix(".ptx"))
                table += lines
                faults += wrong
    put(SHIPPED / "resources.tsv", "\n".join(table) + "\n")
    if faults:
        sys.exit("\n".join(faults))


main()
