//! Frames: the messages of the frames service, and all that a daemon decides about frames.
//!
//! Pure: each decision is a state machine of the form `step(now_ns, event, &mut actions)`, or a
//! plain function. Disk and backing-store operations are actions whose results come back as events.
//! `zazend` and `zazen-store` drive the machines with threads and real disks; the fault tests drive
//! many daemons from the same code with simulated ones.
//!
//! Invariants: no I/O, clock, thread or randomness in here; time is `now_ns`, monotonic nanoseconds
//! of the daemon's own clock. A machine that says it is sequential has one action under way at a
//! time and awaits its event.
//!
//! | decision | machine |
//! |---|---|
//! | may the backing store be asked now? | [`outage::Health`] |
//! | who copies a frame that several ask for? | [`flight::Flights`] |
//! | is this copy of the source whole and current? | [`copy::Copying`] |
//! | how far may a scan's misses run ahead of its reader? | [`misses::Misses`] |
//! | which small frames of a file are read at once? | [`neighbours::Neighbours`] |
//! | is there room, and what goes to make some? | [`room::Account`], [`make_room::MakeRoom`], [`evict_scan_resistant`] |
//! | what may one user, or the datasets beneath a folder, take of the cache? | [`quota`] |
//! | what if a frame's number is taken? | [`admit::admit`] |
//! | may this caller push this frame? | [`push::Intake`] |
//! | does a copy stand for its source, and who may have it? | [`stale`], [`look::Looking`] |
//! | which copies may a reader take without asking, and when does it ask where they lie? | [`ahead`] |
//! | how are cached frames grouped? | [`scan::Pages`] |
//! | in which order does a scan hand out, and what becomes of a copy that fails? | [`hand_out::HandOut`] |
//! | who may evict, pin and verify? | [`administer`] |
//! | how much may one user have under way? | [`shares`] |
//! | why was a frame not here, and does the store give what it gave? | [`absence`] |

pub mod absence;
pub mod administer;
pub mod admit;
pub mod ahead;
pub mod copy;
pub mod evict_scan_resistant;
pub mod flight;
pub mod hand_out;
pub mod home;
pub mod load;
pub mod look;
pub mod make_room;
pub mod messages;
pub mod misses;
pub mod neighbours;
pub mod outage;
pub mod push;
pub mod quota;
pub mod room;
pub mod scan;
pub mod scan_record;
pub mod shares;
pub mod stale;
