// Runs of the hybrid encoding: a header of 7 bits a byte; then a repeated value in whole bytes, or groups of eight packed values.
#pragma once
#include "columns.cuh"

struct Run {
    u32 len;     // values
    u32 packed;
    u32 value;   // if it is not packed
    u32 data;    // where its values begin in the body
    u64 next;    // where the next run begins, if nothing is cut off
};

// Reads the run at `at`. Gives what is wrong with it, or 0; that packed values are all there is for the caller to see, as the last
// ones may be cut off.
static __device__ u32 read_run(const u8 *body, u32 at, u32 end, u32 bits, Run &run) {
    if (at >= end) return END;
    u32 header = body[at++];
    if (header >= 0x80) {
        header &= 0x7f;
#pragma unroll 1
        for (u32 shift = 7;; shift += 7) {
            if (at >= end) return HEADER;
            u32 byte = body[at++];
            if (shift == 28 && byte > 0x0f) return HEADER;
            header |= (byte & 0x7f) << shift;
            if (byte < 0x80) break;
        }
    }
    run.packed = header & 1;
    run.len = header >> 1;
    run.data = at;
    run.value = 0;
    if (run.packed) {
        u32 groups = run.len;
        if (groups == 0 || groups > 0x0fffffffu) return RUN_LENGTH;
        run.len = groups * 8;
        run.next = at + (u64)groups * bits;
        return 0;
    }
    if (run.len == 0) return RUN_LENGTH;
    u32 bytes = (bits + 7) / 8;
    if (bytes > end - at) return RUN_BYTES;
    for (u32 i = 0; i < bytes; i++) run.value |= (u32)body[at + i] << (i * 8);
    if (bits < 32 && run.value >> bits) return RUN_VALUE;
    run.next = at + bytes;
    return 0;
}
