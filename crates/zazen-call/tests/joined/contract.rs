//! The contract of a carrier over the unix socket, TCP and shared memory; and what only these
//! carriers promise.

use crate::common::*;
use std::sync::Arc;
use zazen_call::{Connection, Server, ServerLimits, Service, ShmLimits, contract};
use zazen_core::{ErrorKind, Result};

struct On(Carrier);

struct Runs(Carrier, Bench);

impl Rig for On {
    fn start(&self, services: Vec<Arc<dyn Service>>, limits: ServerLimits) -> Box<dyn Running> {
        // The contract asks its own probe.
        let bench = Bench::of(Arc::default(), services, limits, ShmLimits::default());
        Box::new(Runs(self.0, bench))
    }

    fn passes_fds(&self) -> bool {
        self.0 != Carrier::Tcp
    }
}

impl Running for Runs {
    fn server(&self) -> &Server {
        &self.1.server
    }

    fn connect(&self) -> Result<Connection> {
        self.1.try_connect(self.0)
    }
}

/// Checks each promise on each carrier; the carrier named last before a failure is the one that
/// failed.
macro_rules! promises {
    ($($promise:ident)*) => {$(
        #[test]
        fn $promise() {
            for carrier in CARRIERS {
                eprintln!("carrier {carrier:?}");
                contract::$promise(&On(carrier));
            }
        }
    )*};
}

promises! {
    payloads_of_any_size_come_back
    bulk_travels_both_ways_in_any_pieces
    an_error_comes_as_itself_and_the_connection_lives
    unread_bulk_never_blocks_nor_breaks_the_connection
    a_panic_is_an_error_reply
    one_connection_too_many_is_told_busy
    calls_of_many_connections_run_at_once
    a_late_reply_is_timed_out_and_the_connection_dead
    what_no_peer_would_take_is_refused_before_it_is_sent
    drain_lets_calls_finish_and_closes_the_rest
    drain_cuts_off_what_takes_too_long
    a_service_hears_that_its_caller_is_gone
}

#[test]
fn the_service_knows_who_calls() {
    let bench = Bench::new();
    let ask = |carrier| {
        String::from_utf8(bench.connect(carrier).call(SERVICE, WHOAMI, b"", &[]).unwrap().payload).unwrap()
    };
    let remote = ask(Carrier::Tcp);
    assert!(remote.contains("uid: 1234, gid: 567, groups: [8, 9, 10]"), "{remote}");
    assert!(
        remote.contains("pid: 4321, host: Some(\"testhost\")") && remote.contains("local=false"),
        "{remote}"
    );
    let local = ask(Carrier::Unix);
    let me = zazen_call::Identity::of_this_process();
    assert!(local.contains(&format!("uid: {}, gid: {}", me.credentials.uid, me.credentials.gid)), "{local}");
    for group in &me.credentials.groups {
        assert!(local.contains(&group.to_string()), "{local}");
    }
    assert!(local.contains(&format!("pid: {}, host: None", std::process::id())), "{local}");
    assert!(local.contains("local=true"), "{local}");
}

#[test]
fn a_drained_server_listens_no_more() {
    let bench = Bench::new();
    assert_eq!(bench.server.drain(PATIENCE), 0);
    assert!(!bench.socket.exists());
    assert_eq!(bench.server.listen_tcp("127.0.0.1:0").unwrap_err().kind(), ErrorKind::ShuttingDown);
}
