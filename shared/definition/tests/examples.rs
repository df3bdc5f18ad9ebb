//! The shipped examples compile, and do what they say when their calls end one way or another.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

use std::{collections::HashMap, fs, path::Path, sync::Arc};

use ditto_contracts::{CallUid, Json, JsonWriter, Namespace, ReceiptState, RunId, RunStatus, WireError};
use ditto_definition::{Definition, compile, render_all};
use ditto_graph::{CallIntent, CallOutcome, Decision, Ending, Event, Outlook, Plan, RunFacts, RunMachine, RunOptions};

fn example(name: &str) -> Definition {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name);
    let text = fs::read_to_string(path).unwrap();
    compile(&text, name).unwrap_or_else(|problems| panic!("{}", render_all(&problems, name, &text)))
}

const OPTIONS: RunOptions = RunOptions { reconcile_window_ms: 60_000 };

/// One run whose calls are answered by a function of the call.
struct Script {
    plan: Arc<dyn Plan>,
    facts: RunFacts,
    settled: HashMap<CallUid, CallOutcome>,
    machine: RunMachine,
    calls: Vec<CallIntent>,
    made: Vec<String>,
    outlook: Outlook,
    now_ms: i64,
}

impl Script {
    fn begin(definition: &Definition, input: &str) -> Self {
        let input = Json::parse(input.to_owned()).unwrap();
        definition.plan.check_input(&input).unwrap();
        let facts = RunFacts {
            run: RunId::generate(0),
            namespace: Namespace::default_namespace(),
            name: definition.name.clone(),
            revision: definition.revision.clone(),
            input,
        };
        let plan = Arc::clone(&definition.plan);
        let (machine, decision) = RunMachine::begin(Arc::clone(&plan), &facts, OPTIONS, 0).unwrap();
        let settled = HashMap::new();
        let mut script = Self {
            plan,
            facts,
            settled,
            machine,
            calls: vec![],
            made: vec![],
            outlook: Outlook::Running { wake_ms: None },
            now_ms: 0,
        };
        script.take(decision);
        script
    }

    fn take(&mut self, decision: Decision) {
        self.made.extend(decision.calls.iter().map(|call| format!("{} {}", call.call_id, call.node)));
        self.calls.extend(decision.calls);
        self.outlook = decision.outlook;
    }

    fn event(&mut self, event: Event) -> &mut Self {
        self.now_ms += 1;
        let decision = self.machine.advance(&[event], self.now_ms);
        self.take(decision);
        self
    }

    fn answer_one(&mut self, answer: impl Fn(&CallIntent) -> CallOutcome) {
        let call = self.calls.remove(0);
        let outcome = answer(&call);
        self.settled.insert(call.call.clone(), outcome.clone());
        self.event(Event::CallSettled { call: call.call, outcome });
    }

    fn answer(&mut self, answer: impl Fn(&CallIntent) -> CallOutcome) -> &mut Self {
        for _ in 0..1000 {
            if self.calls.is_empty() {
                return self;
            }
            self.answer_one(&answer);
        }
        panic!("the run never comes to rest");
    }

    /// Goes on from the checkpoint, as after a crash.
    fn restore(&mut self) {
        let checkpoint = self.machine.checkpoint_json();
        let references = RunMachine::references(&checkpoint).unwrap();
        let kept = references.kept.into_iter().map(|call| (call.clone(), self.settled[&call].clone())).collect();
        self.machine = RunMachine::restore(Arc::clone(&self.plan), &self.facts, OPTIONS, &checkpoint, &kept).unwrap();
    }

    fn ending(&self) -> &Ending {
        match &self.outlook {
            Outlook::Ended(ending) => ending,
            other => panic!("{other:?}"),
        }
    }

    fn output(&self) -> &str {
        let ending = self.ending();
        assert_eq!(ending.status, RunStatus::Completed, "{ending:?}");
        ending.output.as_ref().unwrap().as_str()
    }
}

fn done(output: JsonWriter) -> CallOutcome {
    CallOutcome { state: ReceiptState::Succeeded, settle_rev: 1, output: Some(output.finish()), error: None }
}

/// Every file has the text `text of PATH`, unless its path begins with `no`: then reading it fails.
fn world(call: &CallIntent) -> CallOutcome {
    let mut w = JsonWriter::new();
    let request = &call.request;
    match call.node.as_str() {
        "INTERACTION.ACT.TOOL" => {
            assert_eq!(call.source.as_deref(), Some("read_text"));
            let path =
                request.field("call").unwrap().field("arguments").unwrap().field("path").unwrap().to_text().unwrap();
            w.begin_object().key("callId").string(call.call_id.as_str()).key("source").string("read_text");
            if path.starts_with("no") {
                w.key("status").string("failed");
                w.key("error").begin_object().key("code").string("NOT_READ").key("message").string("no").end();
                let error = WireError::new(ditto_contracts::ErrorClass::Failed, "NOT_READ", "no");
                return CallOutcome { state: ReceiptState::Failed, error: Some(error), ..done(w) };
            }
            w.key("status").string("success").key("content").string(&format!("text of {path}"));
        }
        "INTERACTION.OBSERVE" => {
            let result = request.field("result").unwrap();
            w.begin_object();
            for key in ["callId", "source", "status", "error"] {
                if let Some(value) = result.field(key) {
                    w.key(key).value(&value);
                }
            }
            w.key("message").begin_object().key("role").string("tool");
            w.key("content").value(&result.field("content").unwrap_or_default()).end();
        }
        "INTERACTION.OUTPUT" => {
            let id = request.field("deliveryId").unwrap();
            w.begin_object().key("deliveryId").value(&id).key("status").string("accepted");
        }
        other => panic!("{other}"),
    }
    done(w)
}

#[test]
fn read_and_deliver_delivers_every_file_once() {
    let definition = example("read-and-deliver.yaml");
    assert_eq!(definition.name.as_str(), "read-and-deliver");
    assert_eq!(definition.plan.deadline_ms(), Some(600_000));
    let mut run = Script::begin(&definition, r#"{"paths":["README.md","Cargo.toml"]}"#);
    let first = run.calls[0].clone();
    assert_eq!(
        first.request.as_str(),
        r#"{"call":{"id":"read:0","name":"read_text","arguments":{"path":"README.md"}}}"#
    );
    run.answer(world);
    assert_eq!(run.output(), r#"{"delivered":2}"#);
    let outputs: Vec<_> = run.made.iter().filter(|call| call.ends_with(".OUTPUT")).collect();
    assert_eq!(outputs, ["read:0:delivery INTERACTION.OUTPUT", "read:1:delivery INTERACTION.OUTPUT"]);
}

#[test]
fn read_and_deliver_stops_with_the_code_of_the_tool() {
    let mut run = Script::begin(&example("read-and-deliver.yaml"), r#"{"paths":["no.md"]}"#);
    run.answer(world);
    assert_eq!(run.ending().status, RunStatus::Failed);
    assert_eq!(run.ending().error.as_ref().unwrap().code, "NOT_READ");
    assert!(!run.made.iter().any(|call| call.contains("OUTPUT")), "{:?}", run.made);
}

#[test]
fn an_input_that_breaks_the_schema_is_refused_by_field() {
    let plan = example("read-and-deliver.yaml").plan;
    #[rustfmt::skip]
    let table = [
        ("{}", "input: \"paths\" is a required property"), (r#"{"paths":[]}"#, "input.paths: value has less than 1 item"),
        (r#"{"paths":["a",1]}"#, "input.paths[1]: value is not of type \"string\""), ("7", "input: value is not of type \"object\""),
    ];
    for (input, line) in table {
        assert_eq!(plan.check_input(&Json::parse(input).unwrap()), Err(vec![line.to_owned()]), "{input}");
    }
}

#[test]
fn branching_takes_the_branch_of_each_file() {
    let definition = example("branching.yaml");
    let mut run = Script::begin(&definition, r#"{"paths":["a.md","no.md"],"maxChars":100}"#);
    assert!(run.calls[0].retry && run.calls[0].timeout_ms == Some(5_000));
    run.answer(world);
    assert_eq!(run.output(), r#"{"files":2,"notes":1}"#);
    let outputs: Vec<_> = run.made.iter().filter_map(|call| call.strip_suffix(" INTERACTION.OUTPUT")).collect();
    assert_eq!(outputs, ["deliver:0", "deliver:1:note"]);

    let mut run = Script::begin(&definition, r#"{"paths":["a.md"],"maxChars":3}"#);
    run.answer(world);
    assert_eq!(run.ending().error.as_ref().unwrap().code, "TEXT_TOO_LONG");
}

#[test]
fn approval_waits_for_the_decision_and_follows_it() {
    let definition = example("approval.yaml");
    let waiting = || {
        let mut run = Script::begin(&definition, r#"{"path":"a.md"}"#);
        run.answer(world);
        match &run.outlook {
            Outlook::Parked { wake_ms: Some(wake_ms), reason } => {
                assert_eq!(reason, "signal decision");
                assert_eq!(*wake_ms, run.now_ms + 86_400_000);
            }
            other => panic!("{other:?}"),
        }
        run
    };
    let signal =
        |body: &str| Event::Signal { n: 1, name: "decision".into(), body: Json::parse(body.to_owned()).unwrap() };

    let mut yes = waiting();
    yes.event(signal(r#"{"approve":true,"by":"alex","ticket":12345678901234567890123}"#)).answer(world);
    assert_eq!(
        yes.output(),
        r#"{"delivered":true,"decision":{"approve":true,"by":"alex","ticket":12345678901234567890123}}"#
    );
    assert_eq!(yes.made.last().unwrap(), "approved INTERACTION.OUTPUT");

    for (body, output) in [
        (r#"{"approve":false}"#, r#"{"delivered":false,"decision":{"approve":false}}"#),
        (r#"{"approve":"yes"}"#, r#"{"delivered":false,"decision":{"approve":"yes"}}"#),
        ("{}", r#"{"delivered":false,"decision":{}}"#),
    ] {
        let mut no = waiting();
        no.event(signal(body)).answer(world);
        assert_eq!(no.output(), output);
        assert!(!no.made.iter().any(|call| call.contains("OUTPUT")));
    }

    let mut late = waiting();
    late.now_ms += 86_400_000;
    late.event(Event::Woke).answer(world);
    assert_eq!(late.output(), r#"{"delivered":false,"decision":null}"#);
}

#[test]
fn a_run_makes_no_call_beyond_its_limit_whether_restored_or_not() {
    let text = include_str!("../../../examples/read-and-deliver.yaml").replace("maxIterations: 32", "maxCalls: 4");
    let definition = compile(&text, "x.yaml").unwrap();
    for restored in [false, true] {
        let mut run = Script::begin(&definition, r#"{"paths":["a","b","c"]}"#);
        for _ in 0..4 {
            if restored {
                run.restore();
            }
            run.answer_one(world);
        }
        let error = run.ending().error.clone().unwrap();
        assert_eq!((error.code.as_str(), run.made.len()), (ditto_definition::CALL_LIMIT, 4), "{:?}", run.made);
    }
    let mut run = Script::begin(&definition, r#"{"paths":["a"]}"#);
    run.answer(world);
    assert_eq!(run.output(), r#"{"delivered":1}"#);
}

#[test]
fn a_definition_read_back_from_its_canonical_form_is_the_same_revision() {
    for name in ["read-and-deliver.yaml", "branching.yaml", "approval.yaml"] {
        let definition = example(name);
        let again = compile(definition.canonical.as_str(), "canonical.json").unwrap();
        assert_eq!(definition.revision, again.revision, "{name}");
        assert_eq!(definition.canonical, again.canonical, "{name}");
        assert_eq!(definition.revision.as_str().len(), 32);
    }
}

#[test]
fn the_documentation_compiles_and_shows_what_is_shown() {
    let text = include_str!("../../../docs/definitions.md");
    let blocks: Vec<_> = text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks[0].starts_with("ditto: 1"));
    let head = "ditto: 1\nloop: x\n";
    let graph = "graph: { tasks: { quote: { node: A.B } } }\n";
    for block in blocks.iter().filter(|block| !block.contains('…')) {
        let whole = match block.lines().next().unwrap_or_default() {
            first if first.starts_with("ditto:") => (*block).to_owned(),
            first if first.starts_with("charge:") => {
                let tasks: String = block.lines().map(|line| format!("    {line}\n")).collect();
                format!("{head}graph:\n  tasks:\n    quote: {{ node: A.B }}\n{tasks}")
            }
            first if first.starts_with("graph:") => format!("{head}{block}"),
            first if first.starts_with("wait:") => format!("{head}{graph}done: true\n{block}"),
            _ => format!("{head}{graph}{block}"),
        };
        if let Err(problems) = compile(&whole, "doc.yaml") {
            panic!("{whole}\n{}", render_all(&problems, "doc.yaml", &whole));
        }
    }
    let bad = "ditto: 1\nloop: bad\ngraph:\n  tasks:\n    load: { node: A.B }\n    read:\n      node: A.B\n      with: \"${ tasks.load.text }\"\n";
    let shown = render_all(&compile(bad, "bad.yaml").unwrap_err(), "bad.yaml", bad);
    let documented = text.split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    assert_eq!(shown, documented);
}

/// Thousands of expressions, each within its own limit, end the run; they do not hold up the coordinator.
#[test]
fn the_expressions_of_one_decision_have_a_limit_together() {
    let mut text = String::from("ditto: 1\nloop: heavy\ngraph:\n  tasks:\n");
    for n in 0..64 {
        text.push_str(&format!(
            "    t{n}: {{ node: TEST.ANY, when: \"${{ input.l.exists(a, input.l.exists(b, a + b < 0)) }}\", with: {{}} }}\n"
        ));
    }
    let definition = compile(&text, "heavy.yaml").unwrap();
    let list: Vec<String> = (0..300).map(|n| n.to_string()).collect();
    let script = Script::begin(&definition, &format!(r#"{{"l":[{}]}}"#, list.join(",")));
    let Outlook::Ended(ending) = script.outlook else { panic!("{:?}", script.outlook) };
    let error = ending.error.unwrap();
    assert_eq!(error.code, "EXPRESSION_FAILED");
    assert!(error.message.contains("of one decision"), "{error}");
    assert!(script.made.is_empty(), "nothing is sent");
}
