// What a thread writes of a value at a time.
#pragma once
#include "types.cuh"

static __device__ void store_unit(u8 *output, u32 unit, u32 index, u64 value) {
    switch (unit) {
    case 8: ((u64 *)output)[index] = value; break;
    case 4: ((u32 *)output)[index] = (u32)value; break;
    case 2: ((u16 *)output)[index] = (u16)value; break;
    default: output[index] = (u8)value;
    }
}
