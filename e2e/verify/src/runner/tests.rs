use sidekey_verify::command::Format;

use super::*;

const LIMIT: Duration = Duration::from_secs(60);

fn shell(script: &str, counting: Counting, limit: Duration) -> Step {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    Step { name: "a step".to_owned(), command, counting, capture: counting == Counting::One, limit }
}

async fn run(step: Step) -> (Option<String>, Outcome, Runner, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let mut runner = Runner::new(dir.path().join("logs")).unwrap();
    runner.grace = Duration::from_millis(300);
    let output = runner.run(step).await;
    let outcome = runner.outcomes().pop().unwrap();
    (output, outcome, runner, dir)
}

#[tokio::test]
async fn a_good_step_gives_its_standard_output_and_counts_once() {
    let (output, outcome, _runner, _dir) =
        run(shell("echo out; echo err >&2", Counting::One, LIMIT)).await;
    assert_eq!(output.as_deref(), Some("out\n"));
    assert_eq!(outcome.counts, Counts { passed: 1, failed: 0 });
    assert_eq!(std::fs::read_to_string(&outcome.log).unwrap(), "err\n");
}

#[tokio::test]
async fn a_bad_exit_code_is_a_failed_test() {
    let (output, outcome, _runner, _dir) = run(shell("exit 3", Counting::One, LIMIT)).await;
    assert_eq!(output, None);
    assert_eq!(outcome.counts, Counts { passed: 0, failed: 1 });
    assert!(outcome.problem.unwrap().contains("exit status: 3"));
}

#[tokio::test]
async fn a_program_that_is_not_there_is_a_failed_test() {
    let mut step = shell("", Counting::One, LIMIT);
    step.command = Command::new("/no/such/program");
    let (_, outcome, _runner, _dir) = run(step).await;
    assert_eq!(outcome.counts, Counts { passed: 0, failed: 1 });
    assert!(outcome.problem.unwrap().contains("/no/such/program"));
}

#[tokio::test]
async fn a_step_beyond_its_limit_is_ended_with_all_its_children() {
    let script = "echo test a ... ok; setsid sleep 600 & sleep 600";
    // Long enough for a shell to say its line on a busy machine.
    let step = shell(script, Counting::Libtest, Duration::from_secs(10));
    let (_, outcome, runner, _dir) = run(step).await;
    assert_eq!(outcome.counts, Counts { passed: 1, failed: 1 });
    assert!(outcome.problem.unwrap().contains("more than"));
    assert!(leftover::find(&runner.mark).is_empty());
}

#[tokio::test]
async fn a_test_that_leaves_a_process_behind_fails_and_the_process_is_ended() {
    // A process that is just about to become another program has no environment for a moment, and
    // so no mark: the step ends when it is one.
    let script = "echo 'test result: ok. 4 passed; 0 failed; 0 ignored'; setsid sleep 600 &
        until tr '\\0' ' ' < /proc/$!/cmdline | grep -q '^sleep 600' \
            && grep -q SIDEKEY_VERIFY_STEP /proc/$!/environ; do :; done";
    let (_, outcome, runner, _dir) = run(shell(script, Counting::Libtest, LIMIT)).await;
    assert_eq!(outcome.counts, Counts { passed: 4, failed: 1 });
    assert!(outcome.problem.unwrap().contains("left running: sleep (pid "));
    leftover::end(&runner.mark).await;
    assert!(leftover::find(&runner.mark).is_empty());
}

#[tokio::test]
async fn an_interrupt_ends_what_runs() {
    let dir = tempfile::tempdir().unwrap();
    let runner = Runner::new(dir.path().join("logs")).unwrap();
    let step = shell("setsid sleep 600 & sleep 600", Counting::One, LIMIT);
    let begun = async {
        while leftover::find(&runner.mark).len() < 3 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        runner.interrupt("a test").await;
    };
    let (output, ()) = tokio::join!(runner.run(step), begun);
    assert_eq!(output, None);
    assert!(leftover::find(&runner.mark).is_empty());
}

#[tokio::test]
async fn a_run_beyond_its_deadline_ends_in_order_and_failed_with_its_summary() {
    let dir = tempfile::tempdir().unwrap();
    let runner = Runner::new(dir.path().join("logs")).unwrap();
    runner.plan(["good", "late", "never begun"].map(str::to_owned).into_iter());
    let named =
        |name: &str, script| Step { name: name.to_owned(), ..shell(script, Counting::One, LIMIT) };
    let work = async {
        runner.run(named("good", "true")).await;
        runner.run(named("late", "setsid sleep 600 & sleep 600")).await;
        runner.run(named("never begun", "true")).await;
    };
    // Long enough for a shell to end on a busy machine.
    let end = crate::supervise(work, &runner, Duration::from_secs(10)).await.unwrap();
    assert_eq!(end, crate::End::Late);
    assert!(leftover::find(&runner.mark).is_empty());
    assert!(!crate::report::summary(&runner, Format::Text).unwrap());
    let text = std::fs::read_to_string(runner.place().join("summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&summary["passed"], &summary["failed"]), (&1.into(), &2.into()), "{summary}");
    assert_eq!(summary["not_run"], serde_json::json!(["never begun"]));
    assert_eq!(summary["steps"][1]["step"], "late");
    let problem = summary["steps"][1]["problem"].as_str().unwrap();
    assert!(problem.contains("the whole run had no time left"), "{problem}");
}

#[tokio::test]
async fn of_a_forgiven_step_both_logs_are_shown() {
    let failing = "echo 'thread x panicked'; echo the first; exit 3";
    let (_, first, runner, _dir) = run(shell(failing, Counting::Libtest, LIMIT)).await;
    let again = verdict::second_chance(&first.step);
    let step = Step { name: again.clone(), ..shell("echo the second", Counting::Libtest, LIMIT) };
    assert!(runner.run(step).await.is_some());
    runner.forgive(&first.step, &again);
    let outcomes = runner.outcomes();
    assert!(outcomes[0].flaky && outcomes.iter().all(|outcome| outcome.counts.failed == 0));
    let texts: Vec<String> = outcomes.iter().map(shown).collect();
    assert!(texts[0].contains("the first") && texts[0].contains("exit status: 3"), "{texts:?}");
    assert!(texts[1].contains("the second") && texts[1].contains("(second chance)"), "{texts:?}");
}

#[tokio::test]
async fn each_run_of_a_step_has_its_own_log_and_its_own_lateness() {
    let late = "echo the first; echo 5000 > $SIDEKEY_WITNESS";
    let (_, first, runner, _dir) = run(shell(late, Counting::Libtest, LIMIT)).await;
    runner.run(shell("echo the second; exit 3", Counting::Libtest, LIMIT)).await;
    let second = runner.outcomes().pop().unwrap();
    assert_eq!((first.late_ms, second.late_ms), (5000, 0));
    assert_eq!(std::fs::read_to_string(&first.log).unwrap(), "the first\n");
    assert_eq!(std::fs::read_to_string(&second.log).unwrap(), "the second\n");
    let again = verdict::second_chance("a step");
    runner.run(Step { name: again.clone(), ..shell("true", Counting::Libtest, LIMIT) }).await;
    runner.forgive("a step", &again);
    let flaky: Vec<bool> = runner.outcomes().iter().map(|outcome| outcome.flaky).collect();
    assert_eq!(flaky, [false, true, false], "only the run that failed is forgiven");
}

#[test]
fn file_names_are_harmless() {
    assert_eq!(file_name("sidekey-e2e test up"), "sidekey-e2e_test_up");
    assert_eq!(file_name("../a/b"), "___a_b");
}
