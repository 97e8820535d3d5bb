//! The header of .npy files, and the members of .npz files.
