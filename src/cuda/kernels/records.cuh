// Where the data of a record of TFRecord is.
#pragma once
#include "types.cuh"

struct Record {
    u64 data;  // address
    u64 len;   // bytes
};
static_assert(sizeof(Record) == 16);  // `RECORD` in frames.rs
