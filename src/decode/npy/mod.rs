//! .npy and .npz files: arrays.
