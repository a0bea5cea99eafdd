//! Things that only the plugin's owner can do for the suite.

use std::fmt::{self, Display};
use std::fs::File;
use std::future::Future;
use std::io::{Read, Seek};
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::Arc;

use tokio::sync::Mutex;

/// An action that the suite may ask for again and again.
pub struct Hook<T> {
    #[allow(clippy::type_complexity, reason = "the one place that spells it")]
    action: Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<T, String>> + Send>> + Send + Sync>,
}

impl<T: 'static> Hook<T> {
    /// Wraps a closure whose future does the work.
    pub fn new<F, R, E>(action: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Result<T, E>> + Send + 'static,
        E: Display,
    {
        Self {
            action: Arc::new(move || {
                let work = action();
                Box::pin(async move { work.await.map_err(|error| error.to_string()) })
            }),
        }
    }

    /// Does it.
    pub(crate) async fn call(&self) -> Result<T, String> {
        (self.action)().await
    }
}

impl Hook<()> {
    /// Runs a program; its success is the hook's. What it leaves in the background lives on.
    pub fn command(command: Command) -> Self {
        let command = Arc::new(Mutex::new(tokio::process::Command::from(command)));
        Self::new(move || {
            let command = Arc::clone(&command);
            async move { output(&mut *command.lock().await).await.map(drop) }
        })
    }
}

impl Hook<u64> {
    /// Runs a program that prints a number, such as a query of the plugin's metrics.
    pub fn number(command: Command) -> Self {
        let command = Arc::new(Mutex::new(tokio::process::Command::from(command)));
        Self::new(move || {
            let command = Arc::clone(&command);
            async move { number(&output(&mut *command.lock().await).await?) }
        })
    }
}

impl<T> Clone for Hook<T> {
    fn clone(&self) -> Self {
        Self { action: Arc::clone(&self.action) }
    }
}

impl<T> fmt::Debug for Hook<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}

/// What a program printed, or why it failed.
///
/// Its output goes to files, not pipes: a pipe would stay open as long as a plugin that
/// the program has started in the background.
async fn output(command: &mut tokio::process::Command) -> Result<String, String> {
    let shown = format!("{:?}", command.as_std());
    let failed = |error: std::io::Error| format!("cannot run {shown}: {error}");
    let mut stdout = tempfile::tempfile().map_err(failed)?;
    let mut stderr = tempfile::tempfile().map_err(failed)?;
    let status = command
        .stdin(Stdio::null())
        .stdout(stdout.try_clone().map_err(failed)?)
        .stderr(stderr.try_clone().map_err(failed)?)
        .kill_on_drop(true)
        .status()
        .await
        .map_err(failed)?;
    let printed = text(&mut stdout).map_err(failed)?;
    if status.success() {
        return Ok(printed);
    }
    let complaint = text(&mut stderr).map_err(failed)?;
    Err(format!("{shown} ended with {status}: {}", complaint.trim()))
}

fn text(file: &mut File) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The last word, as a whole number; metrics print whole numbers as `12` or `12.0`.
fn number(printed: &str) -> Result<u64, String> {
    let word = printed.split_whitespace().last().unwrap_or_default();
    let whole = word.strip_suffix(".0").unwrap_or(word);
    whole.parse().map_err(|_| format!("{word:?} is not a number of backend calls"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn a_command_may_run_many_times_and_prints_its_number() {
        let hook = Hook::number(shell("echo kms_calls 12"));
        assert_eq!(hook.call().await, Ok(12));
        assert_eq!(hook.call().await, Ok(12));
    }

    #[tokio::test]
    async fn a_failed_command_says_what_it_printed() {
        let error = Hook::command(shell("echo no such key >&2; exit 3")).call().await.unwrap_err();
        assert!(error.contains("exit status: 3") && error.ends_with("no such key"), "{error}");
    }

    #[tokio::test]
    async fn a_background_process_does_not_hold_the_hook_up() {
        let dir = tempfile::tempdir().unwrap();
        let pid = dir.path().join("pid");
        let script = format!("sleep 600 & echo $! > {}", pid.display());
        Hook::command(shell(&script)).call().await.unwrap();
        let pid = std::fs::read_to_string(pid).unwrap();
        Hook::command(shell(&format!("kill -9 {pid}"))).call().await.unwrap();
    }

    #[test]
    fn numbers_are_read_as_metrics_write_them() {
        assert_eq!(number("3\n"), Ok(3));
        assert_eq!(number("kms_backend_calls_total 42.0\n"), Ok(42));
        assert!(number("").is_err() && number("-1").is_err() && number("1.5").is_err());
    }
}
