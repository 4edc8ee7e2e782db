#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Values and what llama.cpp's own quantizer makes of them: tests/checkpoint/data/gguf_k_quants.bin.

usage: python tools/golden/make_k_quants.py [--ggml LIBRARY]          needs tools/requirements/llama_cpp.txt
       python tools/golden/make_k_quants.py --compare OURS F16 TYPE   a GGUF file of strata's next to llama.cpp's of F16

The first writes one record a type, as make_gguf.py --quantised does. The second has llama_model_quantize make a file of
TYPE (q4_k_m, q5_k_m, q6_k) from an F16 file of the same model, and says which tensors have other types or bytes, and the
rounding errors of both over all tensors. LIBRARY is libggml-base.so; without it that of llama-cpp-python.
"""
import argparse
import ctypes
import os
import sys
import tempfile

import gguf
import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TYPES = ("Q4_K", "Q5_K", "Q6_K", "Q5_0", "Q5_1")
FILE_TYPES = {"q4_k_m": 15, "q5_k_m": 17, "q6_k": 18}
MOST_RATIO = 1.02  # of our rounding error to llama.cpp's


def load_ggml(path):
    if path is None:
        import llama_cpp
        path = os.path.join(os.path.dirname(llama_cpp.__file__), "lib", "libggml-base.so")
    ggml = ctypes.CDLL(path)
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    ggml.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
                                         ctypes.c_int64, ctypes.c_void_p]
    # The tables of halves are filled by the first context.
    class Params(ctypes.Structure):
        _fields_ = [("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]
    ggml.ggml_init.restype = ctypes.c_void_p
    ggml.ggml_init.argtypes = [Params]
    ggml.ggml_init(Params(1 << 16, None, True))
    return ggml


def make_values(count):
    """Rows of 256: of many sizes, with heavy tails, of one sign, with ties, of zeros, and of zeros but for one."""
    rng = np.random.default_rng(1)
    values = rng.standard_normal((count, 256)).astype(np.float32)
    values[1] = rng.standard_t(3, 256)
    values[2] = np.abs(values[2])
    values[3] = -np.abs(values[3])
    values[4] = 0
    values[5] = np.arange(256) % 7 - 3
    values[6, :128] = 0
    values[7] = 0
    values[7, 40] = 3e-5
    values[8] = np.where(np.arange(256) % 2, 1.0, -1.0)
    values[9] = np.repeat(np.exp2(np.arange(8, dtype=np.float32) - 12), 32) * values[9]
    values *= np.exp2(rng.integers(-10, 4, (count, 1))).astype(np.float32)
    return np.ascontiguousarray(values)


def write_golden(ggml, count=12):
    path = os.path.join(ROOT, "tests/checkpoint/data/gguf_k_quants.bin")
    values = make_values(count)
    with open(path, "wb") as f:
        for name in TYPES:
            kind = gguf.GGMLQuantizationType[name]
            elements, size = gguf.GGML_QUANT_SIZES[kind]
            blocks = values.size // elements
            data = np.zeros(blocks * size, np.uint8)
            ggml.ggml_quantize_chunk(kind, values.ctypes.data, data.ctypes.data, 0, count, 256, None)
            f.write(name.encode().ljust(8, b"\0") + np.array([blocks, size, elements], dtype="<u4").tobytes())
            f.write(values.tobytes() + data.tobytes())
    print(path, os.path.getsize(path))


def square_error(tensor, exact):
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
    return float(((values.reshape(-1) - exact) ** 2).sum())


def compare(ours, f16, kind):
    import llama_cpp
    with tempfile.TemporaryDirectory() as folder:
        theirs = os.path.join(folder, "theirs.gguf")
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype = FILE_TYPES[kind]
        if llama_cpp.llama_model_quantize(f16.encode(), theirs.encode(), ctypes.byref(params)) != 0:
            sys.exit("llama_model_quantize failed")
        tensors = {t.name: t for t in gguf.GGUFReader(theirs).tensors}
        source = {t.name: t for t in gguf.GGUFReader(f16).tensors}
        faults, errors = [], [0.0, 0.0]
        mine = gguf.GGUFReader(ours).tensors
        for tensor in mine:
            other = tensors.pop(tensor.name)
            exact = gguf.quants.dequantize(source[tensor.name].data, source[tensor.name].tensor_type)
            exact = exact.astype(np.float64).reshape(-1)
            errors[0] += square_error(tensor, exact)
            errors[1] += square_error(other, exact)
            if tensor.tensor_type != other.tensor_type:
                faults.append(f"{tensor.name}: {tensor.tensor_type.name}, llama.cpp has {other.tensor_type.name}")
            elif not np.array_equal(tensor.data, other.data):
                faults.append(f"{tensor.name}: other bytes")
        faults += [f"{name}: missing" for name in tensors]
        ratio = (errors[0] / errors[1]) ** 0.5 if errors[1] else 1.0
        print(f"{kind}: {len(mine)} tensors, {len(faults)} of them not as llama.cpp's; rounding error {ratio:.6f} of its")
        print("\n".join(faults[:20]))
        return 0 if ratio <= MOST_RATIO and not faults else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ggml")
    parser.add_argument("--compare", nargs=3, metavar=("OURS", "F16", "TYPE"))
    args = parser.parse_args()
    if args.compare:
        return compare(*args.compare)
    write_golden(load_ggml(args.ggml))
    return 0


if __name__ == "__main__":
    sys.exit(main())
