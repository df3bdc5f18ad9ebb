//! One suite for every implementation of the bus; each case has a bus, and a server, of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod local_only;
mod nats_only;
mod plain;
mod redelivery;
mod streams;
mod support;

/// Declares each case once for every implementation.
macro_rules! on_every_bus {
    ($($module:ident: $($case:ident),+ $(,)?;)+) => {
        mod local {
            $($(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                crate::support::bounded(crate::$module::$case(crate::support::local())).await;
            })+)+
        }
        mod nats {
            $($(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let (_server, bus) = crate::support::nats().await;
                crate::support::bounded(crate::$module::$case(bus)).await;
            })+)+
        }
    };
}

on_every_bus! {
    streams:
        what_is_published_is_pulled_and_leaves_when_acked,
        a_batch_is_answered_in_order,
        a_cancelled_publish_holds_nothing_up,
        a_message_id_is_stored_once,
        a_message_id_is_forgotten_after_its_window,
        no_duration_is_too_long,
        a_full_stream_refuses_and_recovers,
        consumers_take_what_their_filters_say,
        overlapping_filters_are_refused,
        a_message_waits_for_its_consumer,
        pullers_share_the_work,
        ensuring_is_idempotent_and_may_race,
        settings_can_be_updated,
        contradicting_streams_are_refused,
        a_deleted_consumer_is_missing_and_its_messages_stay,
        what_does_not_exist_is_missing,
        bytes_and_headers_arrive_unchanged,
        what_is_too_large_is_refused_alone,
        what_would_break_the_frame_is_refused,
        a_waiting_pull_wakes_at_once,
        a_pull_ends_when_it_expires,
        a_pull_ends_when_it_is_used_up,
        a_cancelled_wait_loses_nothing,
        a_dropped_pull_gives_back_what_it_held,
        pulls_dropped_at_any_time_lose_nothing,
        aborted_waiters_lose_nothing,
        old_messages_go,
        a_closed_bus_says_so;
    redelivery:
        an_unanswered_message_comes_again,
        a_nak_comes_back_at_once,
        a_nak_comes_back_after_its_delay,
        a_terminated_message_never_comes_back,
        in_progress_restarts_the_wait,
        the_first_answer_counts,
        every_message_is_finished_whatever_pullers_do,
        unanswered_messages_are_bounded,
        used_up_deliveries_are_reported;
    plain:
        wildcards_take_what_they_say,
        a_group_shares_and_others_see_all,
        requests_get_their_own_answers,
        nobody_there_is_told_at_once,
        silence_is_maybe,
        a_slow_reader_loses_the_oldest,
        nobody_needs_to_listen,
        a_stream_stores_and_answers_what_is_sent_to_its_subjects,
        malformed_subjects_are_refused;
}
