//! A small HTTP/1.1 responder for pages that are made anew for each request.
//!
//! Invariants: there is one thread, and at most [`GUESTS_MAX`] connections. A connection is closed
//! if it has not asked and taken its answer within [`PATIENCE`]; if a new one finds no place, the
//! oldest is closed. Nothing that a peer does ends the responder, nor does a lack of descriptors.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Connections at once.
const GUESTS_MAX: usize = 64;
/// From a connection's beginning to its end.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest request, headers and all.
const REQUEST_BYTES_MAX: usize = 16 << 10;
/// How long the responder accepts nothing after the kernel refused a connection.
const REST: Duration = Duration::from_millis(100);

/// An answer.
pub(crate) struct Page {
    pub(crate) content_type: &'static str,
    pub(crate) text: String,
}

/// Makes the page at a path in one of the formats that the request's `Accept` names (empty: any);
/// `None` if there is none.
pub(crate) type Pages = Box<dyn Fn(&str, &str) -> Option<Page> + Send>;

/// Answers until it is dropped.
pub(crate) struct Responder {
    pub(crate) addr: SocketAddr,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Responder {
    /// Listens at `addr`, `host:port`.
    pub(crate) fn serve(addr: &str, pages: Pages) -> std::io::Result<Responder> {
        let listener = TcpListener::bind(addr)?;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        let stop = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name("metrics".into())
            .spawn(move || Reception { listener, guests: VecDeque::new(), pages }.receive(&stopped))?;
        Ok(Responder { addr, stop, thread: Some(thread) })
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        // Only a bug of ours makes the thread panic; then there is nothing to wait for.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// One connection.
struct Guest {
    stream: TcpStream,
    until: Instant,
    heard: Vec<u8>,
    /// What is left to be sent; `None` while it is still asking.
    answer: Option<Vec<u8>>,
}

struct Reception {
    listener: TcpListener,
    /// The oldest first.
    guests: VecDeque<Guest>,
    pages: Pages,
}

impl Reception {
    fn receive(mut self, stop: &OwnedFd) {
        let mut resting: Option<Instant> = None;
        loop {
            let now = Instant::now();
            resting = resting.filter(|until| *until > now);
            self.guests.retain(|guest| guest.until > now);
            let mut waits = vec![PollFd::new(stop, PollFlags::IN)];
            for guest in &self.guests {
                let side = if guest.answer.is_some() { PollFlags::OUT } else { PollFlags::IN };
                waits.push(PollFd::new(&guest.stream, side));
            }
            if resting.is_none() {
                waits.push(PollFd::new(&self.listener, PollFlags::IN));
            }
            let first = self.guests.iter().map(|guest| guest.until).chain(resting).min();
            let timeout = first.map(|until| until.saturating_duration_since(now) + Duration::from_millis(1));
            let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
            // If poll fails (EINTR, no memory), the loop tries all connections, which do not block.
            let failed = rustix::event::poll(&mut waits, timeout.as_ref()).is_err();
            let ready: Vec<bool> = waits.iter().map(|wait| failed || !wait.revents().is_empty()).collect();
            drop(waits);
            if ready[0] && !failed {
                return;
            }
            let mut turn = ready[1..].iter();
            let pages = &self.pages;
            self.guests.retain_mut(|guest| !turn.next().is_some_and(|ready| *ready) || guest.go_on(pages));
            if resting.is_none() && !self.accept() {
                resting = Some(Instant::now() + REST);
            }
        }
    }

    /// Accepts the connections that wait. Returns false if the kernel has no descriptor or memory.
    fn accept(&mut self) -> bool {
        // A bound, so that connections that are here already are served too.
        for _ in 0..GUESTS_MAX {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if stream.set_nonblocking(true).is_err() {
                        continue;
                    }
                    if self.guests.len() >= GUESTS_MAX {
                        self.guests.pop_front();
                    }
                    let until = Instant::now() + PATIENCE;
                    self.guests.push_back(Guest { stream, until, heard: Vec::new(), answer: None });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(_) => return false,
            }
        }
        true
    }
}

impl Guest {
    /// Reads or writes as much as goes without waiting; false when the connection ends.
    fn go_on(&mut self, pages: &Pages) -> bool {
        if self.answer.is_none() && !self.listen(pages) {
            return false;
        }
        let Some(answer) = &mut self.answer else { return true };
        while !answer.is_empty() {
            match self.stream.write(answer) {
                Ok(0) => return false,
                Ok(sent) => drop(answer.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        let _ = self.stream.shutdown(Shutdown::Write);
        false
    }

    /// Reads more of the request and, once it is whole, makes the answer; false if the peer left.
    fn listen(&mut self, pages: &Pages) -> bool {
        let mut piece = [0; 4096];
        loop {
            match self.stream.read(&mut piece) {
                Ok(0) => return false,
                Ok(read) => self.heard.extend_from_slice(&piece[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return false,
            }
            if self.heard.len() > REQUEST_BYTES_MAX {
                self.answer = Some(plain("431 Request Header Fields Too Large", "the request is too long\n"));
                return true;
            }
            if self.heard.windows(4).any(|end| end == b"\r\n\r\n") {
                let answer = catch_unwind(AssertUnwindSafe(|| answer(&self.heard, pages)));
                let broken = || plain("500 Internal Server Error", "the daemon met a bug of its own\n");
                self.answer = Some(answer.unwrap_or_else(|_| broken()));
                return true;
            }
        }
    }
}

fn answer(heard: &[u8], pages: &Pages) -> Vec<u8> {
    let line = heard.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let words = String::from_utf8_lossy(line);
    let mut words = words.split(' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    let Some(target) = target.filter(|_| version.is_some_and(|version| version.starts_with("HTTP/1.")))
    else {
        return plain("400 Bad Request", "this is HTTP/1.1\n");
    };
    let bodiless = match method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return plain("405 Method Not Allowed", "GET only\n"),
    };
    match pages(target.split('?').next().unwrap_or_default(), &accepted(heard)) {
        Some(page) => reply("200 OK", page.content_type, &page.text, bodiless),
        None => plain("404 Not Found", "the metrics are at /metrics\n"),
    }
}

/// What the request's `Accept` lines say, in lower case.
fn accepted(heard: &[u8]) -> String {
    let text = String::from_utf8_lossy(heard).to_ascii_lowercase();
    let lines = text.lines().skip(1).filter_map(|line| line.strip_prefix("accept:"));
    lines.map(str::trim).collect::<Vec<_>>().join(",")
}

fn plain(status: &str, text: &str) -> Vec<u8> {
    reply(status, "text/plain; charset=utf-8", text, false)
}

fn reply(status: &str, content_type: &str, text: &str, bodiless: bool) -> Vec<u8> {
    let length = text.len();
    let body = if bodiless { "" } else { text };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\nConnection: \
         close\r\n\r\n{body}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn responder() -> Responder {
        let pages = |path: &str, accept: &str| match path {
            "/metrics" => Some(Page { content_type: "text/x", text: "x".repeat(3 << 20) }),
            "/accept" => Some(Page { content_type: "text/x", text: accept.to_owned() }),
            "/panic" => panic!("a bug"),
            _ => None,
        };
        Responder::serve("127.0.0.1:0", Box::new(pages)).unwrap()
    }

    fn ask(addr: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn requests_are_answered_by_their_path() {
        let responder = responder();
        let check = |request: &str, status: &str, body_bytes: usize| {
            let text = ask(responder.addr, request);
            assert!(text.starts_with(status), "{request:?}: {}", &text[..text.len().min(100)]);
            let (_, body) = text.split_once("\r\n\r\n").unwrap();
            assert_eq!(body.len(), body_bytes, "{request:?}");
        };
        check("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 200", 3 << 20);
        check("GET /metrics?x=1 HTTP/1.0\r\n\r\n", "HTTP/1.1 200", 3 << 20);
        check("HEAD /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 200", 0);
        check("GET /else HTTP/1.1\r\n\r\n", "HTTP/1.1 404", 28);
        check("POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405", 9);
        check("GET /panic HTTP/1.1\r\n\r\n", "HTTP/1.1 500", 32);
        check("nonsense\r\n\r\n", "HTTP/1.1 400", 17);
        check(&"x".repeat(REQUEST_BYTES_MAX + 1), "HTTP/1.1 431", 24);
    }

    #[test]
    fn a_page_is_told_what_its_reader_accepts() {
        let responder = responder();
        let told = |headers: &str| {
            let text = ask(responder.addr, &format!("GET /accept HTTP/1.1\r\n{headers}\r\n"));
            text.split_once("\r\n\r\n").unwrap().1.to_owned()
        };
        assert_eq!(told("Host: x\r\n"), "");
        assert_eq!(told("ACCEPT: Text/Plain\r\nx: y\r\nAccept: a/b;q=0.5\r\n"), "text/plain,a/b;q=0.5");
    }

    #[test]
    fn idle_connections_do_not_keep_it_from_answering() {
        let responder = responder();
        let idle: Vec<_> = (0..3 * GUESTS_MAX).map(|_| TcpStream::connect(responder.addr).unwrap()).collect();
        assert!(ask(responder.addr, "GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
        drop(idle);
        assert!(ask(responder.addr, "GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
    }
}
