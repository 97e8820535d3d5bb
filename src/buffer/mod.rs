//! Who owns which bytes: memory of any place, exclusive blocks of it to read into, shared blocks to hand out,
//! and the pool they come from.

mod block;
mod huge;
mod memory;
mod pool;
mod slabs;

pub use block::{Block, BlockMut, DeviceBytes};
pub use memory::{HostMemory, Memory, Place};
pub use pool::{Pool, PoolOptions, PoolStats};
pub(crate) use slabs::Slabs;
