//! A clock that follows the work: for verdicts that hang on deadlines.

use std::future::Future;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::task::yield_now;
use tokio::time::advance;

/// So far the clock moves at once: short beside every wait of suite and plugins.
const STEP: Duration = Duration::from_millis(5);

/// So many looks at the sockets lie between two steps. A call takes a few, so that two seconds
/// are hundreds of calls.
const LOOKS: usize = 8;

/// Does the work on this thread, plugin and suite alike, while time stands still but for a step
/// after each few looks at the sockets. However long the machine takes, nothing is ever late;
/// and whoever waits in vain has waited in a moment.
pub(crate) fn by_its_own_clock<T>(work: impl Future<Output = T>) -> T {
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        tokio::spawn(tick());
        work.await
    })
}

/// Never idle, or the runtime would move its clock to the next deadline, which it does even while
/// bytes lie in a socket.
async fn tick() {
    loop {
        for _ in 0..LOOKS {
            // All others run, and the sockets are looked at.
            yield_now().await;
        }
        advance(STEP).await;
    }
}
