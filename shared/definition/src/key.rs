//! The idempotency key of a call as its tool declares it: an expression over the call's request.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, PoisonError, RwLock},
};

use ditto_contracts::{Json, RunId};
use ditto_graph::{RunScope, Scope};
use indexmap::IndexMap;

use crate::{
    expression::{self, Expr, Meter, Names, Root},
    stack,
};

/// Longest key, in bytes.
const KEY_BYTES_MAX: usize = 512;
/// Compiled rules that are remembered.
const RULES_MAX: usize = 1024;

/// A memory only: the same text always compiles to the same rule.
static RULES: LazyLock<RwLock<HashMap<String, Arc<KeyRule>>>> = LazyLock::new(Default::default);

/// A compiled key rule such as `input.call.arguments.task + ':crm'`.
#[derive(Debug)]
pub struct KeyRule(Expr);

impl KeyRule {
    /// Compiles a rule; once for a tool, not once for a call.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn compile(rule: &str) -> Result<Self, String> {
        let names = Names { roots: &[Root::Input, Root::Run], tasks: &[], declared: &[] };
        let compiled = stack::with_room(|| expression::compile(rule, &names))?;
        let message = |problems: Vec<expression::Problem>| {
            problems.into_iter().map(|problem| problem.message).collect::<Vec<_>>().join("; ")
        };
        compiled.map(Self).map_err(message)
    }

    /// The key of a call: `input` is its request, `run.id` its run.
    ///
    /// # Errors
    /// When the rule has no value for this request, or yields no text of 1 to 512 bytes.
    pub fn key(&self, run: &RunId, request: &Json) -> Result<String, String> {
        let null = Json::null();
        let scope = Scope {
            input: request,
            state: &null,
            graph: &null,
            tasks: &IndexMap::new(),
            signal: &null,
            run: &RunScope::new(run.clone(), 0),
        };
        let mut meter = Meter::default();
        let value = expression::evaluate(&self.0, &scope, &mut meter).and_then(|value| value.to_json(&mut meter));
        let text = value.map_err(|fault| fault.message)?.to_text().ok_or("yields no text")?;
        if text.trim().is_empty() || text.len() > KEY_BYTES_MAX || text.chars().any(char::is_control) {
            return Err(format!("yields {} bytes; expected 1 to {KEY_BYTES_MAX} bytes of visible text", text.len()));
        }
        Ok(text)
    }
}

/// The key of a call by the text of its rule. Rules are compiled once and remembered: there are as many as tools.
///
/// # Errors
/// As [`KeyRule::compile`] and [`KeyRule::key`].
pub fn key_of_request(rule: &str, run: &RunId, request: &Json) -> Result<String, String> {
    let known = RULES.read().unwrap_or_else(PoisonError::into_inner).get(rule).cloned();
    let compiled = match known {
        Some(compiled) => compiled,
        None => {
            let compiled = Arc::new(KeyRule::compile(rule)?);
            let mut rules = RULES.write().unwrap_or_else(PoisonError::into_inner);
            if rules.len() >= RULES_MAX {
                rules.clear();
            }
            rules.insert(rule.to_owned(), Arc::clone(&compiled));
            compiled
        }
    };
    compiled.key(run, request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_of_the_request() {
        let run = RunId::generate(1);
        let request = Json::parse(r#"{"call":{"arguments":{"task":"t-1","n":3}}}"#).unwrap();
        assert_eq!(key_of_request("input.call.arguments.task + ':crm'", &run, &request), Ok("t-1:crm".into()));
        assert!(key_of_request("input.call.arguments.n", &run, &request).unwrap_err().contains("no text"));
        assert!(key_of_request("input.nothing", &run, &request).is_err());
        assert!(key_of_request("1 +", &run, &request).is_err());
    }
}
