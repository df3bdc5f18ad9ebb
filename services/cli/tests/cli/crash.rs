//! Killing `ditto run` at the worst moments and giving the same command again.

use crate::support::{Place, example};

const TWO: &str = r#"{"paths":["a.txt","b.txt"]}"#;

/// Runs with an armed fault point; the process kills itself there with SIGKILL.
fn killed_at(place: &Place, point: &str, arguments: &[&str]) {
    let mut command = place.command(arguments);
    command.env("DITTO_TEST_FAULT", format!("{point}:kill"));
    let said = place.finish(command);
    assert_eq!(said.code, None, "{point} was not reached: {said:?}");
}

#[test]
fn killed_anywhere_and_started_again_it_delivers_once() {
    let file = example("read-and-deliver.yaml");
    // The second effect is the first delivery.
    for point in [
        "after_submit:1",
        "before_publish:1",
        "worker_before_effect:1",
        "worker_after_claim:1",
        "worker_before_effect:2",
        "worker_after_effect:2",
        "worker_before_result:2",
        "before_ingest:2",
        "before_advance:2",
        "after_advance:2",
    ] {
        let place = Place::with_file_sink();
        let arguments = ["run", &file, "--input", TWO, "--key", "once"];
        killed_at(&place, point, &arguments);
        let said = place.ditto(&arguments);
        assert_eq!((said.code, said.out.as_str()), (Some(0), "{\"delivered\":2}\n"), "{point}: {said:?}");
        let deliveries = place.deliveries();
        assert_eq!(deliveries.len(), 2, "{point}");
        assert!(deliveries[0].contains("hello") && deliveries[1].contains("world"), "{point}: {deliveries:?}");
    }
}

#[test]
fn killed_again_and_again_it_goes_on_where_it_was() {
    let place = Place::with_file_sink();
    let arguments = ["run", &example("read-and-deliver.yaml"), "--input", TWO, "--key", "again"];
    for _ in 0..3 {
        // Each life makes one more effect and dies before it can say so.
        let mut command = place.command(&arguments);
        command.env("DITTO_TEST_FAULT", "worker_after_effect:1:kill");
        place.finish(command);
    }
    assert_eq!(place.ditto(&arguments).expect(0).out, "{\"delivered\":2}\n");
    assert_eq!(place.deliveries().len(), 2);
}

#[test]
fn an_effect_that_cannot_be_asked_about_is_unknown_until_a_person_decides() {
    let place = Place::new();
    let arguments = ["run", &example("read-and-deliver.yaml"), "--input", TWO, "--key", "lost"];
    killed_at(&place, "worker_after_effect:2", &arguments);
    let said = place.ditto(&arguments).expect(5);
    assert!(said.err.contains("receipts resolve") && said.out.is_empty(), "{said:?}");
    assert!(!said.err.contains("\"content\":\"hello"), "it was sent again: {}", said.err);

    let dev = place.dev(&[]);
    let server = ["--server", dev.url.as_str()];
    let with = |arguments: &[&str]| place.ditto(&[arguments, &server].concat());
    let unknown = with(&["receipts", "ls", "--unknown", "--json"]).expect(0).json();
    assert_eq!(unknown["items"].as_array().map(Vec::len), Some(1), "{unknown}");
    let (call, run) = (unknown["items"][0]["call"].as_str().unwrap(), unknown["items"][0]["runId"].as_str().unwrap());
    let shown = with(&["receipts", "show", call]).expect(0);
    assert!(shown.out.contains("never sent again") && shown.out.contains("resolve"), "{}", shown.out);
    // A person looked at the screen: the line was there.
    let output = r#"{"deliveryId":"read:0:delivery","status":"accepted"}"#;
    let resolve = ["receipts", "resolve", call, "--succeeded", "--output", output, "--reason", "seen", "--who", "alex"];
    with(&resolve).expect(0);
    let ended = with(&["runs", "wait", run]).expect(0);
    assert_eq!(ended.out, "{\"delivered\":2}\n");
    assert_eq!(with(&["receipts", "ls", "--unknown"]).expect(0).out, "no unknown outcomes\n");
    let conflict = with(&resolve).expect(2);
    assert!(conflict.err.contains("receipt is succeeded") || conflict.err.contains("stands"), "{}", conflict.err);
}
