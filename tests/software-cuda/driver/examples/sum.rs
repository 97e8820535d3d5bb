//! A program that uses CUDA and knows nothing of the software device: the sum of some numbers, with how it went on standard output.

use cudarc::driver::{CudaContext, DriverError, LaunchConfig, PushKernelArg, sys};

fn main() -> Result<(), DriverError> {
    // SAFETY: it only looks for a library.
    if !unsafe { sys::is_culib_present() } {
        println!("no CUDA driver");
        return Ok(());
    }
    let context = CudaContext::new(0)?;
    println!("{}", context.name()?);
    let stream = context.new_stream()?;
    let module = context.load_module(software_cuda_bugs::LANGUAGE.into())?;
    let kernel = module.load_function("block_sum")?;
    let numbers: Vec<u32> = (0..40_000).collect();
    let input = stream.clone_htod(&numbers)?;
    let mut out = stream.alloc_zeros::<u64>(3)?;
    let config = LaunchConfig {
        grid_dim: (5, 1, 1),
        block_dim: (128, 1, 1),
        shared_mem_bytes: 0,
    };
    let groups = numbers.len() as u32 / 4;
    // SAFETY: the kernel takes these three, and stays in both buffers.
    unsafe {
        stream
            .launch_builder(&kernel)
            .arg(&input)
            .arg(&mut out)
            .arg(&groups)
            .launch(config)
    }?;
    println!("sum {}", stream.clone_dtoh(&out)?[0]);
    Ok(())
}
