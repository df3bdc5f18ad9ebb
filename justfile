# Short names for the commands of this project; each works without `just` as well.

# List the recipes.
default:
    @just --list

# Format every crate.
fmt:
    cargo fmt --all

# Formatting, clippy and documentation; warnings are errors.
lint:
    cargo xtask lint

# All tests, against real servers that are found or installed first: `just test --filter kill`.
test *ARGS:
    cargo xtask test {{ARGS}}

# The whole fleet in containers, until interrupted.
fleet *ARGS:
    docker compose up --build {{ARGS}}

# Everything in one process, on SQLite, with the API on loopback.
dev *ARGS:
    cargo run -- dev {{ARGS}}

# All benchmark workloads: `just bench --json`.
bench *ARGS:
    cargo run --release -- bench {{ARGS}}

# The fleet under random kills, pauses and restarts, for longer than the tests take.
soak seconds="3600":
    DITTO_SOAK_SECONDS={{seconds}} cargo xtask test --filter soak -- --nocapture
