//! safetensors files: tensors as views of one block of memory.
