//! Section 5 over the bus: what a tool answered reaches the message and the sink as it was.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use ditto_contracts::{
    Json, RunStatus,
    interaction::{DeliveryStatus, OutputInput, OutputReceipt, Reference},
};
use ditto_interaction::{
    DeliveryContext, Interaction, InteractionConfig, Output, OutputSink, SandboxPolicy, SinkError, Tool, ToolContext,
    ToolOutcome,
};
use ditto_worker::{NodeContext, NodeHandler as _};

use crate::engine::Engine;

/// Keeps the ids of what was delivered.
struct Kept(Arc<Mutex<Vec<String>>>);

#[async_trait]
impl OutputSink for Kept {
    async fn deliver(&self, _: &DeliveryContext<'_>, input: &OutputInput) -> Result<OutputReceipt, SinkError> {
        self.0.lock().unwrap().push(input.delivery_id.clone());
        Ok(OutputReceipt::accepted(&input.delivery_id))
    }
}

/// A tool that answers 7 with a reference, and a sink.
fn seven(deliveries: &Arc<Mutex<Vec<String>>>) -> Interaction {
    let tool = Tool::new("seven", |_: ToolContext, _: Json| async {
        let reference = Reference::from_json(&Json::parse(r#"{"uri":"mem:1"}"#.to_owned())?);
        let references = reference.ok().map(|reference| vec![reference]);
        Ok(ToolOutcome { references, ..ToolOutcome::structured(Json::parse("7".to_owned())?) })
    });
    let permissions = SandboxPolicy { tools: vec!["seven".into()], ..SandboxPolicy::default() };
    let config = InteractionConfig { permissions, ..InteractionConfig::default() };
    Interaction::builder().config(config).tool(tool).sink(Kept(deliveries.clone())).build().unwrap()
}

#[tokio::test]
async fn case_152_seven_kinds_of_content_are_delivered() {
    let deliveries: Arc<Mutex<Vec<String>>> = Arc::default();
    let node = Output::new(Arc::new(Kept(deliveries.clone())), 1_000);
    for content in [
        r#""""#,
        "null",
        "false",
        "0",
        r#"{"answer":42}"#,
        r#"[1,"two",null]"#,
        r#"[{"type":"text","text":"a"},{"type":"json","data":1},{"type":"reference","reference":{"uri":"u"}}]"#,
    ] {
        let input = format!(r#"{{"deliveryId":"d","message":{{"role":"assistant","content":{content}}}}}"#);
        let cx = NodeContext::detached("k", Duration::from_secs(5));
        let receipt = node.handle(&cx, Json::parse(input).unwrap()).await.unwrap();
        assert_eq!(receipt.status, DeliveryStatus::Accepted, "{content}");
    }
    assert_eq!(deliveries.lock().unwrap().len(), 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn case_153_a_result_survives_the_way_to_the_message() {
    let mut engine = Engine::start().await;
    engine.interaction(seven(&Arc::default())).await;
    let definition = "ditto: 1\nloop: seven\ngraph:\n  tasks:\n    call:\n      node: INTERACTION.ACT.TOOL\n      \
                      with: { call: { id: one, name: seven, arguments: {} } }\n    observe:\n      \
                      node: INTERACTION.OBSERVE\n      needs: [call]\n      with: { result: \"${ tasks.call }\" }\n\
                      output: \"${ tasks.observe }\"\n";
    let row = engine.run(definition, "{}").await;
    let output = row.output.clone().unwrap_or_else(|| panic!("{row:?}"));
    let member = |name: &str| output.field(name).unwrap().as_str().to_owned();
    assert_eq!(member("callId"), r#""one""#);
    assert_eq!(member("structuredContent"), "7");
    assert_eq!(member("references"), r#"[{"uri":"mem:1"}]"#);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn case_154_a_loop_of_two_delivers_twice_in_order() {
    let (mut engine, deliveries) = (Engine::start().await, Arc::default());
    engine.interaction(seven(&deliveries)).await;
    let definition = "ditto: 1\nloop: twice\nstate: { n: 0 }\ngraph:\n  tasks:\n    call:\n      \
                      node: INTERACTION.ACT.TOOL\n      \
                      with: { call: { id: \"call-${ state.n }\", name: seven, arguments: {} } }\n    observe:\n      \
                      node: INTERACTION.OBSERVE\n      needs: [call]\n      with: { result: \"${ tasks.call }\" }\n    \
                      output:\n      node: INTERACTION.OUTPUT\n      needs: [observe]\n      \
                      with: { deliveryId: \"delivery-${ state.n }\", message: { role: assistant, \
                      content: \"${ tasks.observe.message.content }\" } }\n\
                      update: { n: \"${ state.n + 1 }\" }\ndone: \"${ state.n == 2 }\"\n";
    let row = engine.run(definition, "{}").await;
    assert_eq!(row.status, RunStatus::Completed, "{row:?}");
    assert_eq!(*deliveries.lock().unwrap(), ["delivery-0", "delivery-1"]);
    engine.stop().await;
}
