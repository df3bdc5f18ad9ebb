//! What each process reads from `ditto.yaml` and the environment. A process reads only its own sections, so that a
//! worker needs none of the ledger's secrets.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use ditto_bus::nats::NatsConfig;
use ditto_coordinator::CoordinatorConfig;
use ditto_interaction::{InteractionConfig, OutputConfig, SandboxPolicy};
use ditto_runtime::{
    config::{Check, ConfigTree, DurationMs, Reader, Secret, Validate},
    health::HealthConfig,
    telemetry::TelemetryConfig,
};
use ditto_sql::SqlOptions;
use serde::Deserialize;

use crate::exit::Failure;

/// Port of the API unless configured otherwise.
pub const DEFAULT_PORT: u16 = 7878;

/// `coordinator` in `ditto.yaml`, as the coordinator defines it.
#[derive(Debug, Default, Deserialize)]
#[serde(transparent)]
struct CoordinatorSection(CoordinatorConfig);

impl Validate for CoordinatorSection {
    fn validate(&self, check: &mut Check<'_>) {
        for (field, problem) in self.0.problems() {
            // "is 5; expected 10 to 20"
            let (found, expected) = problem.split_once("; expected ").unwrap_or(("", &problem));
            check.that(field, false, format!("{expected}, found {}", found.trim_start_matches("is ")));
        }
    }
}

/// `bus` in `ditto.yaml`, as the bus defines it.
#[derive(Debug, Default, Deserialize)]
#[serde(transparent)]
struct BusSection(NatsConfig);

impl Validate for BusSection {
    fn validate(&self, check: &mut Check<'_>) {
        if let Err(error) = self.0.validate() {
            let text = error.to_string();
            let text = text.strip_prefix("nats configuration: ").unwrap_or(&text);
            // "pingIntervalMs must be 500 to 5000"
            match text.split_once(" must be ") {
                Some((field, expected)) => check.that(field, false, expected),
                None => check.that("", false, format!("another value: {text}")),
            }
        }
    }
}

/// `ledger` in `ditto.yaml`: where the coordinators of a fleet keep the truth.
#[derive(Clone, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct LedgerConfig {
    /// `postgres://user@host:5432/name` or `sqlite:folder/file.db`. A password in the file is refused.
    pub url: Option<String>,
    /// Password of the Postgres user, by reference.
    pub password: Option<Secret>,
    /// Postgres schema; made if missing.
    pub schema: Option<String>,
    /// Most connections to Postgres (2 to 500).
    pub max_connections: u32,
    /// Longest wait for a connection.
    pub connect_timeout: DurationMs,
    /// Longest statement.
    pub statement_timeout: DurationMs,
    /// Postgres behind a pooler that gives a connection per transaction.
    pub transaction_pooler: bool,
}

impl Default for LedgerConfig {
    fn default() -> Self {
        Self {
            url: None,
            password: None,
            schema: None,
            max_connections: 16,
            connect_timeout: DurationMs::from_secs(5),
            statement_timeout: DurationMs::from_secs(5),
            transaction_pooler: false,
        }
    }
}

impl std::fmt::Debug for LedgerConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = self.url.as_deref().map(ditto_runtime::config::redact_url);
        f.debug_struct("LedgerConfig").field("url", &shown).field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl Validate for LedgerConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if let Some(url) = &self.url {
            let known = ["postgres://", "postgresql://", "sqlite:"].iter().any(|scheme| url.starts_with(scheme));
            check.that("url", known, "an address that begins with `postgres://` or `sqlite:`");
            let user = url.split_once("://").and_then(|(_, rest)| rest.split_once('@')).map(|(user, _)| user);
            let fits = self.password.is_none() || user.is_some_and(|user| !user.contains(':'));
            check.that("password", fits, "a user without password in `url`, as in postgres://user@host/name");
        }
        check.range("maxConnections", self.max_connections, 2..=500);
        let (least, most) = (DurationMs::from_ms(100), DurationMs::from_secs(300));
        check.range("connectTimeout", self.connect_timeout, least..=most);
        check.range("statementTimeout", self.statement_timeout, least..=most);
    }
}

impl LedgerConfig {
    /// The address with the password in it. Hand it to the database library and nowhere else.
    pub(crate) fn address(&self) -> Option<String> {
        let url = self.url.as_deref()?;
        let Some(password) = &self.password else { return Some(url.to_owned()) };
        let (head, host) = url.split_once('@')?;
        let mut escaped = String::new();
        for byte in password.expose().bytes() {
            match byte {
                b if b.is_ascii_alphanumeric() => escaped.push(char::from(b)),
                b => escaped.push_str(&format!("%{b:02X}")),
            }
        }
        Some(format!("{head}:{escaped}@{host}"))
    }

    /// How the database is opened.
    pub(crate) fn options(&self) -> SqlOptions {
        SqlOptions {
            application_name: "ditto-coordinator".into(),
            max_connections: self.max_connections,
            acquire_timeout: self.connect_timeout.as_duration(),
            statement_timeout: self.statement_timeout.as_duration(),
            lock_timeout: Duration::from_secs(2).min(self.statement_timeout.as_duration()),
            schema: self.schema.clone(),
            transaction_pooler: self.transaction_pooler,
            ..SqlOptions::default()
        }
    }
}

/// `http` in `ditto.yaml`: where a coordinator serves its API.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct HttpConfig {
    /// Address and port; loopback unless set. Port 0: any free one.
    pub listen: SocketAddr,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self { listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), DEFAULT_PORT) }
    }
}

impl Validate for HttpConfig {
    fn validate(&self, _: &mut Check<'_>) {}
}

/// `dev` in `ditto.yaml`: the whole fleet in one process.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct DevConfig {
    /// Folder of the embedded ledger.
    pub data_dir: PathBuf,
}

impl Default for DevConfig {
    fn default() -> Self {
        Self { data_dir: PathBuf::from(".ditto") }
    }
}

impl Validate for DevConfig {
    fn validate(&self, check: &mut Check<'_>) {
        check.that("dataDir", !self.data_dir.as_os_str().is_empty(), "a folder");
    }
}

/// What the embedded fleet reads.
#[derive(Debug)]
pub struct EmbeddedSettings {
    /// Logs and exports.
    pub telemetry: TelemetryConfig,
    /// The coordinator.
    pub coordinator: CoordinatorConfig,
    /// The interaction worker.
    pub interaction: InteractionConfig,
    /// Its folder.
    pub dev: DevConfig,
    /// Its API.
    pub http: HttpConfig,
}

impl EmbeddedSettings {
    /// Reads the sections.
    ///
    /// # Errors
    /// Every problem at once.
    pub(crate) fn read(tree: &ConfigTree) -> Result<Self, Failure> {
        let mut reader = tree.reader();
        let mut settings = Self {
            telemetry: TelemetryConfig::read(&mut reader),
            coordinator: reader.section::<CoordinatorSection>("coordinator").0,
            interaction: reader.section("workers.interaction"),
            dev: reader.section("dev"),
            http: reader.section("http"),
        };
        reader.finish()?;
        settings.interaction = on_a_laptop(settings.interaction, tree.has_section("workers.interaction.permissions"));
        Ok(settings)
    }
}

/// A worker of a fleet may do nothing unless it is told so. Here, where the person who runs it is the one who asks, it
/// may read the current folder and write deliveries to stderr, unless `ditto.yaml` says otherwise.
fn on_a_laptop(mut config: InteractionConfig, permissions_given: bool) -> InteractionConfig {
    if config.workspace.is_none() {
        config.workspace = std::env::current_dir().ok();
    }
    if !permissions_given && config.permissions == SandboxPolicy::default() {
        config.permissions = SandboxPolicy { tools: vec!["read_text".into()], read: true, ..SandboxPolicy::default() };
    }
    config.output.get_or_insert(OutputConfig::Console {});
    config
}

/// What a coordinator of a fleet reads.
#[derive(Debug)]
pub struct CoordinatorSettings {
    /// Logs and exports.
    pub telemetry: TelemetryConfig,
    /// The coordinator.
    pub coordinator: CoordinatorConfig,
    /// The ledger.
    pub ledger: LedgerConfig,
    /// The bus.
    pub bus: NatsConfig,
    /// Its API.
    pub http: HttpConfig,
}

impl CoordinatorSettings {
    /// Reads the sections.
    ///
    /// # Errors
    /// Every problem at once.
    pub(crate) fn read(tree: &ConfigTree) -> Result<Self, Failure> {
        let mut reader = tree.reader();
        let mut settings = Self {
            telemetry: TelemetryConfig::read(&mut reader),
            coordinator: reader.section::<CoordinatorSection>("coordinator").0,
            ledger: ledger(tree, &mut reader),
            bus: bus(tree, &mut reader, "ditto-coordinator"),
            http: reader.section("http"),
        };
        reader.finish()?;
        settings.coordinator.instance = instance(tree, settings.coordinator.instance.take(), "coordinator");
        Ok(settings)
    }
}

/// What an interaction worker of a fleet reads.
#[derive(Debug)]
pub struct InteractionSettings {
    /// Logs and exports.
    pub telemetry: TelemetryConfig,
    /// The worker.
    pub interaction: InteractionConfig,
    /// The bus.
    pub bus: NatsConfig,
    /// Its health.
    pub health: HealthConfig,
    /// Exclusive name of this replica, from `DITTO_INSTANCE`.
    pub instance: Option<String>,
}

impl InteractionSettings {
    /// Reads the sections.
    ///
    /// # Errors
    /// Every problem at once.
    pub(crate) fn read(tree: &ConfigTree) -> Result<Self, Failure> {
        let mut reader = tree.reader();
        let settings = Self {
            telemetry: TelemetryConfig::read(&mut reader),
            interaction: reader.section("workers.interaction"),
            bus: bus(tree, &mut reader, "ditto-worker-interaction"),
            health: reader.section("health"),
            instance: instance(tree, None, "interaction"),
        };
        reader.finish()?;
        Ok(settings)
    }
}

/// The ledger alone, as `ditto migrate` needs it.
///
/// # Errors
/// Every problem at once.
pub(crate) fn ledger_alone(tree: &ConfigTree) -> Result<LedgerConfig, Failure> {
    let mut reader = tree.reader();
    let ledger = ledger(tree, &mut reader);
    reader.finish()?;
    Ok(ledger)
}

/// The bus alone.
///
/// # Errors
/// Every problem at once.
pub(crate) fn bus_alone(tree: &ConfigTree, name: &str) -> Result<NatsConfig, Failure> {
    let mut reader = tree.reader();
    let bus = bus(tree, &mut reader, name);
    reader.finish()?;
    Ok(bus)
}

fn ledger(tree: &ConfigTree, reader: &mut Reader<'_>) -> LedgerConfig {
    let ledger: LedgerConfig = reader.section("ledger");
    // A variable may carry it; the file is committed and copied around.
    if tree.variable("DITTO_LEDGER_URL").is_none() && ledger.url.as_deref().is_some_and(has_password) {
        reader.report(
            "ledger.url",
            "expected no password in the file: give it as `password: { env: NAME }` or set DITTO_LEDGER_URL",
        );
    }
    ledger
}

/// `DITTO_NATS_URL` wins over `bus.url`, so that one variable serves clients and services.
fn bus(tree: &ConfigTree, reader: &mut Reader<'_>, name: &str) -> NatsConfig {
    let mut bus = reader.section::<BusSection>("bus").0;
    if tree.variable("DITTO_BUS_URL").is_none() && bus.url.split(',').any(has_user) {
        reader.report(
            "bus.url",
            "expected no credentials in the file: use `user` and `password: { env: NAME }`, or set DITTO_BUS_URL",
        );
    }
    if let Some(url) = tree.variable("DITTO_NATS_URL") {
        url.clone_into(&mut bus.url);
    }
    if bus.name == NatsConfig::default().name {
        name.clone_into(&mut bus.name);
    }
    bus
}

/// The exclusive name of a replica. Coordinator and worker of one host must not share it.
fn instance(tree: &ConfigTree, configured: Option<String>, kind: &str) -> Option<String> {
    configured.or_else(|| tree.variable("DITTO_INSTANCE").map(|name| format!("{name}/{kind}")))
}

fn user_of(url: &str) -> Option<&str> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.rsplit_once('@').map(|(user, _)| user)
}

fn has_password(url: &str) -> bool {
    user_of(url).is_some_and(|user| user.contains(':')) || url.to_ascii_lowercase().contains("password=")
}

fn has_user(url: &str) -> bool {
    user_of(url).is_some()
}

#[cfg(test)]
mod tests {
    use ditto_runtime::config;

    use super::*;

    fn tree(yaml: &str, variables: &[(&str, &str)]) -> ConfigTree {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ditto.yaml");
        std::fs::write(&file, yaml).unwrap();
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        config::load(Some(&file), variables.collect::<Vec<_>>().into_iter()).unwrap()
    }

    #[test]
    fn every_problem_is_reported_with_its_path() {
        let tree =
            tree("coordinator: { sessionTtlMs: 5 }\nledger: { url: 'mysql://x' }\nbus: { pingIntervalMs: 1 }\n", &[]);
        let text = CoordinatorSettings::read(&tree).unwrap_err().message;
        for fragment in [
            "1:30: coordinator.sessionTtlMs: expected 300 to 600000, found 5",
            "ledger.url: expected an address that begins with `postgres://` or `sqlite:`",
            "bus.pingIntervalMs: expected 500 to 5000",
        ] {
            assert!(text.contains(fragment), "{fragment} in {text}");
        }
    }

    #[test]
    fn secrets_come_by_reference_only_and_reach_the_address() {
        let inline =
            tree("ledger: { url: 'postgres://joe:hunter2@db/x' }\nbus: { url: 'nats://joe:hunter2@h' }\n", &[]);
        let text = CoordinatorSettings::read(&inline).unwrap_err().message;
        assert!(text.contains("ledger.url") && text.contains("bus.url") && !text.contains("hunter2"), "{text}");

        let by_reference = tree(
            "ledger: { url: 'postgres://joe@db/x', password: { env: PW } }\n",
            &[("PW", "p@ss/1"), ("DITTO_NATS_URL", "nats://other:4222"), ("DITTO_INSTANCE", "host-1")],
        );
        let settings = CoordinatorSettings::read(&by_reference).unwrap();
        assert_eq!(settings.ledger.address().as_deref(), Some("postgres://joe:p%40ss%2F1@db/x"));
        assert_eq!(settings.bus.url, "nats://other:4222");
        assert_eq!(settings.coordinator.instance.as_deref(), Some("host-1/coordinator"));
        assert!(!format!("{settings:?}").contains("p@ss"));

        let variable = tree("ledger: {}\n", &[("DITTO_LEDGER_URL", "postgres://joe:hunter2@db/x")]);
        let settings = CoordinatorSettings::read(&variable).unwrap();
        assert_eq!(settings.ledger.address().as_deref(), Some("postgres://joe:hunter2@db/x"));
    }

    #[test]
    fn the_sample_serves_every_process() {
        let sample = include_str!("../../../deploy/ditto.yaml");
        let tree = tree(sample, &[("DITTO_DB_PASSWORD", "x")]);
        let coordinator = CoordinatorSettings::read(&tree).unwrap();
        assert_eq!(coordinator.ledger.address().as_deref(), Some("postgres://ditto:x@postgres:5432/ditto"));
        let worker = InteractionSettings::read(&tree).unwrap();
        assert_eq!(worker.health.port, Some(9464));
        let embedded = EmbeddedSettings::read(&tree).unwrap();
        assert_eq!(embedded.interaction.permissions.tools, ["read_text"]);
    }

    #[test]
    fn a_laptop_reads_its_folder_and_a_configured_worker_only_what_it_may() {
        let embedded = EmbeddedSettings::read(&tree("log: {}\n", &[])).unwrap();
        assert!(embedded.interaction.permissions.read && embedded.interaction.output.is_some());
        let strict = tree("workers: { interaction: { permissions: { read: false } } }\n", &[]);
        let embedded = EmbeddedSettings::read(&strict).unwrap();
        assert_eq!(embedded.interaction.permissions, SandboxPolicy::default());
        let fleet = InteractionSettings::read(&tree("log: {}\n", &[])).unwrap();
        assert_eq!((fleet.interaction.permissions, fleet.interaction.output), (SandboxPolicy::default(), None));
    }
}
