//! How a unit test of a hold table asks the law: LAW names a file of rocketmq-4.9.

use law::Law;

fn law() -> Law {
    Law::load(&std::env::var("LAW").expect("LAW names a file")).expect("a law")
}

#[test]
fn a_message_between_read_and_insert_is_a_lost_wakeup() {
    let law = law();
    let mut oracle = law.oracle();
    for step in ["next_pull(0)", "pull_read(0)", "append", "make_visible", "notify_start", "notify_end", "hold(0)"] {
        assert_eq!(oracle.did(step), Ok(vec![]), "{step} is not legal");
    }
    assert_eq!(oracle.broken(), ["no_lost_wakeup", "woken_within"]);
}

#[test]
fn a_hold_of_what_has_not_missed_is_refused() {
    let law = law();
    let mut oracle = law.oracle();
    assert_eq!(oracle.did("hold(0)"), Ok(vec!["phase_0 = PHASE_MISSED"]));
    assert_eq!(oracle.may(), ["append", "next_pull(0)", "next_pull(1)", "tick", "stop"]);
    assert!(oracle.did("hold(9)").is_err());
}
