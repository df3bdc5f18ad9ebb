//! The definitions of the workloads: a chain is a loop with one task per iteration, a fan-out one graph with N tasks.

use serde_json::json;

use super::plan::Class;

/// Most steps of a chain.
const STEPS_MAX: u32 = 1_000_000;

/// The shape of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// N steps, one after the other.
    Chain,
    /// N steps at once.
    Fanout,
}

/// Name and text of the definition for runs of this kind. A chain takes its length from the input.
pub(super) fn definition(kind: Kind, class: Class, n: u32) -> (String, String) {
    let node = format!("BENCH.STEP.{class}");
    match kind {
        Kind::Chain => {
            let name = format!("bench-chain-{class}");
            let text = json!({
                "ditto": 1,
                "loop": name,
                "state": { "index": 0 },
                "maxIterations": STEPS_MAX,
                "graph": { "tasks": {
                    "step": { "node": node, "with": { "run": "${ input.run }", "step": "${ state.index }" } },
                } },
                "update": { "index": "${ state.index + 1 }" },
                "done": "${ state.index == input.n }",
                "output": {},
            });
            (name, text.to_string())
        }
        Kind::Fanout => {
            let name = format!("bench-fanout-{n}-{class}");
            let task = |step| json!({ "node": node, "with": { "run": "${ input.run }", "step": step } });
            let tasks: serde_json::Map<_, _> = (0..n).map(|step| (format!("t{step}"), task(step))).collect();
            let text = json!({ "ditto": 1, "loop": name, "graph": { "tasks": tasks }, "output": {} });
            (name, text.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_compile() {
        for kind in [Kind::Chain, Kind::Fanout] {
            for class in [Class::R, Class::K] {
                let (name, text) = definition(kind, class, 500);
                let compiled = ditto_definition::compile(&text, "bench.json").unwrap();
                assert_eq!(compiled.name.as_str(), name);
            }
        }
    }
}
