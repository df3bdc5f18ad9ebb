//! Requests and results of every size, and questions by key.

use ditto_contracts::{
    CallPolicy, ErrorClass, Json, Verdict, WireError, codes, limits,
    wire::{JobMode, PayloadRef},
};
use ditto_worker::QueryAnswer;

use crate::support::*;

#[tokio::test]
async fn values_above_the_inline_limit_travel_as_payloads() {
    for size in [70 * 1024, 600 * 1024] {
        let probe =
            Probe::new(CallPolicy::default(), |_, input| Box::pin(async move { Ok(Json::string(&input.text)) }));
        let mut fleet = Fleet::start(probe).await;
        let text = "ü".repeat(size / 2);
        let request = Json::from_serialize(&Input { n: 1, text: text.clone() }).unwrap();
        let payload = PayloadRef { digest: request.sha256(), size: request.len() as u32 };
        fleet.plan(1, &request, &CallPolicy::default());
        fleet.ledger.script(|state| drop(state.payloads.insert(payload.to_string(), request.as_bytes().to_vec())));
        let mut job = fleet.job(1, &request, ditto_contracts::EffectClass::NonIdempotent, true);
        job.payload = Some(payload);
        fleet.publish(&job, &request).await;
        let result = fleet.ledger.results(1).await.remove(0);
        assert_eq!((result.body.verdict, result.body.output), (Verdict::Succeeded, None));
        let reference = result.body.output_ref.unwrap();
        assert_eq!(fleet.ledger.state().payloads[&reference], Json::string(&text).as_bytes());
        let parsed: PayloadRef = reference.parse().unwrap();
        assert_eq!(parsed.digest, Json::string(&text).sha256());
        assert_eq!(fleet.stop().await, Ok(()));
    }
}

#[tokio::test]
async fn an_altered_payload_is_not_executed() {
    let mut fleet = Fleet::start(Probe::answering(CallPolicy::default())).await;
    let request = request(1);
    let payload = PayloadRef { digest: request.sha256(), size: request.len() as u32 };
    let other = request.as_str().replace('1', "2").into_bytes();
    fleet.plan(1, &request, &CallPolicy::default());
    fleet.ledger.script(|state| drop(state.payloads.insert(payload.to_string(), other)));
    let mut job = fleet.job(1, &request, ditto_contracts::EffectClass::NonIdempotent, true);
    job.payload = Some(payload);
    fleet.publish(&job, &request).await;
    fleet.no_jobs_left().await;
    assert_eq!(fleet.stop().await, Ok(()));
    assert_eq!((fleet.probe.started(), fleet.ledger.state().claims.len()), (0, 0));
}

#[tokio::test]
async fn an_answer_above_the_limit_does_not_hide_that_the_call_was_made() {
    for (policy, verdict) in [(CallPolicy::default(), Verdict::Unknown), (CallPolicy::read_only(), Verdict::Failed)] {
        let probe =
            Probe::new(policy, |_, _| Box::pin(async { Ok(Json::string(&"x".repeat(limits::VALUE_BYTES_MAX))) }));
        let mut fleet = Fleet::start(probe).await;
        fleet.dispatch(1).await;
        let result = fleet.ledger.results(1).await.remove(0);
        let error = result.body.error.unwrap();
        assert_eq!((result.body.verdict, error.code.as_str()), (verdict, codes::RESPONSE_INVALID));
        assert!(error.message.contains("8388610 bytes"), "{}", error.message);
        assert_eq!(fleet.stop().await, Ok(()));
    }
}

#[tokio::test]
async fn cases_l13_l14_input_that_breaks_its_schema_fails_and_nothing_is_sent() {
    for (text, fragment) in
        [(r#"{"n":"one"}"#, "$.n"), (r#"{"n":1,"other":2}"#, "other"), (r#"[1]"#, "$: "), (r#""text""#, "$: ")]
    {
        let mut fleet = Fleet::start(Probe::answering(CallPolicy::default())).await;
        let request = json(text);
        fleet.plan(1, &request, &CallPolicy::default());
        let job = fleet.job(1, &request, ditto_contracts::EffectClass::NonIdempotent, true);
        fleet.publish(&job, &request).await;
        let result = fleet.ledger.results(1).await.remove(0);
        let error = result.body.error.unwrap();
        assert_eq!((result.body.verdict, error.code.as_str()), (Verdict::Failed, codes::INVALID_INPUT));
        assert!(error.message.contains(fragment), "{text}: {}", error.message);
        assert_eq!(fleet.stop().await, Ok(()));
        assert_eq!(fleet.probe.started(), 0);
    }
}

#[tokio::test]
async fn a_question_by_key_is_answered_with_what_the_backend_said() {
    let refusal =
        || QueryAnswer::Refused { output: Some(json("{}")), error: WireError::new(ErrorClass::Failed, "NO", "no") };
    let stored = CallPolicy { rejections_stored: true, ..CallPolicy::keyed() };
    #[rustfmt::skip]
    let table = [
        (CallPolicy::keyed(), QueryAnswer::Applied(json(r#"{"a":1e2}"#)), Verdict::Succeeded, None),
        (CallPolicy::keyed(), QueryAnswer::Absent,     Verdict::Unknown, Some(codes::KEY_ABSENT)),
        (CallPolicy::keyed(), QueryAnswer::InProgress, Verdict::Unknown, Some(codes::KEY_IN_PROGRESS)),
        (CallPolicy::keyed(), QueryAnswer::Conflict,   Verdict::Unknown, Some(codes::KEY_CONFLICT)),
        (CallPolicy::keyed(), QueryAnswer::Unanswered, Verdict::Unknown, Some(codes::QUERY_UNANSWERED)),
        (CallPolicy::keyed(), refusal(),               Verdict::Unknown, Some(codes::QUERY_UNANSWERED)),
        (stored,              refusal(),               Verdict::Failed,  Some("NO")),
    ];
    for (policy, answer, verdict, code) in table {
        let probe = Probe { answer: answer.clone(), ..Probe::answering(policy) };
        let mut fleet = Fleet::start(probe).await;
        let mut job = fleet.job(1, &request(1), ditto_contracts::EffectClass::Keyed, true);
        job.mode = JobMode::Query;
        job.key = Some("order 7 – größer".into());
        fleet.publish(&job, &request(1)).await;
        let result = fleet.ledger.results(1).await.remove(0);
        assert!(result.query && result.token.is_none());
        assert_eq!(result.body.verdict, verdict, "{answer:?}");
        assert_eq!(result.body.error.map(|error| error.code).as_deref(), code);
        if let QueryAnswer::Applied(output) = &answer {
            assert_eq!(result.body.output.as_ref(), Some(output));
        }
        fleet.no_jobs_left().await;
        assert_eq!(fleet.stop().await, Ok(()));
        assert_eq!(*fleet.probe.keys.lock().unwrap(), ["order 7 – größer"]);
        assert_eq!((fleet.probe.started(), fleet.ledger.state().claims.len()), (0, 0));
    }
}
