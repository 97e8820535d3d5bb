//! The header of safetensors files, and the index of sharded ones.
