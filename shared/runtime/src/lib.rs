//! What every service process needs before its own work starts: configuration, telemetry, metrics, health, a clock,
//! shutdown, and the fault points of the crash tests. It knows no service.

pub mod clock;
pub mod config;
pub mod fault;
pub mod health;
pub mod metrics;
pub mod shutdown;
pub mod telemetry;

/// Installs ring as the TLS provider of this process. Safe to call more than once and from several threads.
///
/// Every binary calls it first ([`telemetry::init`] does so too), so that no library picks a provider of its own.
pub fn install_tls_provider() {
    // An error means that a provider is installed already: the first call of this function, or a test's own choice.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
