//! A bar that shows how far a read is, on a terminal only.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::Duration;

use feedwater::Progress;
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::Args;
use crate::print::printable;

const STYLE: &str = "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {eta}";
const TICK: Duration = Duration::from_millis(50);

/// A bar for `path`; hidden if somebody reads our output rather than looks at it.
pub(crate) fn bar(path: &Path, args: &Args) -> ProgressBar {
    let seen = !args.json && io::stdout().is_terminal() && io::stderr().is_terminal();
    if !seen {
        return ProgressBar::hidden();
    }
    let name = path.file_name().unwrap_or(path.as_os_str());
    let bar = ProgressBar::new(0).with_message(printable(&name.to_string_lossy()));
    match ProgressStyle::with_template(STYLE) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Waits for a read, and meanwhile asks it now and then how far it is.
pub(crate) fn wait<R: Future + Unpin>(
    mut read: R,
    bar: &ProgressBar,
    block: impl Fn(R) -> R::Output,
    progress: impl Fn(&R) -> Progress,
) -> R::Output {
    if bar.is_hidden() {
        return block(read);
    }
    // The read goes on whether it is polled or not; the runtime is for the timer.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    let Ok(runtime) = runtime else {
        return block(read);
    };
    runtime.block_on(async {
        let mut tick = tokio::time::interval(TICK);
        loop {
            tokio::select! {
                biased;
                result = &mut read => return result,
                _ = tick.tick() => bar.set_position(progress(&read).bytes_done),
            }
        }
    })
}
