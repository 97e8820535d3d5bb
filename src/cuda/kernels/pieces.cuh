// Parts of bytes whose checksums are wanted.
#pragma once
#include "types.cuh"

struct Piece {
    u64 data;     // address of the first byte
    u64 after;    // bytes of the segment that follow this piece
    u64 segment;  // which result it belongs to
    u32 len;      // bytes
    u32 first;    // 1: the first of its segment
};
static_assert(sizeof(Piece) == 32);  // `PIECE` in frames.rs; what `queue_segments` in checksum.rs writes
