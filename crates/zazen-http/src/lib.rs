//! A small HTTP/1.1 responder for pages that are made anew for each request: the daemon's metrics,
//! and `zazen dash`.
//!
//! It knows paths and headers. Who may see a page is the business of whoever makes the page.
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
/// From a connection's beginning to its end. A browser on a busy machine asks seconds after it has
/// connected, and leaves a page without its script if it is cut off.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest request, headers and all.
const REQUEST_BYTES_MAX: usize = 16 << 10;
/// How long the responder accepts nothing after the kernel refused a connection.
const REST: Duration = Duration::from_millis(100);

/// What a peer asks for. All of it is the peer's word.
pub struct Request {
    /// The path, without the query.
    pub path: String,
    /// What is behind the question mark, as it came; empty if there is none.
    pub query: String,
    /// Names in lower case, and values without blanks around them.
    headers: Vec<(String, String)>,
}

impl Request {
    /// The header of this name, in lower case; `None` if it is missing, or there more than once:
    /// two values mean different things to different readers.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(other, _)| other == name).map(|(_, value)| &**value);
        values.next().filter(|_| values.next().is_none())
    }

    /// The formats that its `Accept` headers name, in lower case; empty: any.
    pub fn accepted(&self) -> String {
        let values = self.headers.iter().filter(|(name, _)| name == "accept").map(|(_, value)| &**value);
        values.collect::<Vec<_>>().join(",").to_ascii_lowercase()
    }

    fn read(heard: &[u8]) -> Option<(Request, String)> {
        let text = String::from_utf8_lossy(heard);
        let mut lines = text.split("\r\n");
        let mut words = lines.next()?.split(' ');
        let (method, target, version) = (words.next()?, words.next()?, words.next()?);
        if !version.starts_with("HTTP/1.") {
            return None;
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let header = |line: &str| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_owned()))
        };
        let headers = lines.filter_map(header).collect();
        Some((Request { path: path.to_owned(), query: query.to_owned(), headers }, method.to_owned()))
    }
}

/// An answer.
pub struct Page {
    /// Code and reason.
    pub status: &'static str,
    /// The text's type, with its encoding.
    pub content_type: &'static str,
    /// Further headers: names and values.
    pub headers: &'static [(&'static str, &'static str)],
    /// What the page says.
    pub text: String,
}

impl Page {
    /// A page that is there.
    pub fn of(content_type: &'static str, text: impl Into<String>) -> Page {
        Page { status: "200 OK", content_type, headers: &[], text: text.into() }
    }

    /// A refusal, with `why` for a person.
    pub fn refusal(status: &'static str, why: &str) -> Page {
        Page { status, ..Page::of("text/plain; charset=utf-8", format!("{why}\n")) }
    }
}

/// Makes the page that a request is for.
pub type Pages = Box<dyn Fn(&Request) -> Page + Send>;

/// Answers until it is dropped.
pub struct Responder {
    /// Where it listens.
    pub addr: SocketAddr,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Responder {
    /// Listens at `addr`, `host:port`, on a thread called `thread`.
    pub fn serve(addr: &str, thread: &str, pages: Pages) -> std::io::Result<Responder> {
        let listener = TcpListener::bind(addr)?;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        let stop = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name(thread.into())
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
                let page = Page::refusal("431 Request Header Fields Too Large", "the request is too long");
                self.answer = Some(reply(&page, false));
                return true;
            }
            if self.heard.windows(4).any(|end| end == b"\r\n\r\n") {
                let answer = catch_unwind(AssertUnwindSafe(|| answer(&self.heard, pages)));
                let broken =
                    || Page::refusal("500 Internal Server Error", "the program met a bug of its own");
                self.answer = Some(answer.unwrap_or_else(|_| reply(&broken(), false)));
                return true;
            }
        }
    }
}

fn answer(heard: &[u8], pages: &Pages) -> Vec<u8> {
    let Some((request, method)) = Request::read(heard) else {
        return reply(&Page::refusal("400 Bad Request", "this is HTTP/1.1"), false);
    };
    match method.as_str() {
        "GET" | "HEAD" => reply(&pages(&request), method == "HEAD"),
        _ => reply(&Page::refusal("405 Method Not Allowed", "GET only"), false),
    }
}

fn reply(page: &Page, bodiless: bool) -> Vec<u8> {
    let Page { status, content_type, headers, text } = page;
    let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = text.len();
    let body = if bodiless { "" } else { text.as_str() };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n{more}Connection: \
         close\r\n\r\n{body}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn responder() -> Responder {
        let pages = |request: &Request| match request.path.as_str() {
            "/metrics" => Page::of("text/x", "x".repeat(3 << 20)),
            "/accept" => Page::of("text/x", request.accepted()),
            "/host" => Page {
                headers: &[("X-Seen", "yes")],
                ..Page::of("text/x", format!("{:?} {:?}", request.header("host"), request.query))
            },
            "/panic" => panic!("a bug"),
            _ => Page::refusal("404 Not Found", "no such page"),
        };
        Responder::serve("127.0.0.1:0", "pages", Box::new(pages)).unwrap()
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
        check("GET /else HTTP/1.1\r\n\r\n", "HTTP/1.1 404", 13);
        check("POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405", 9);
        check("GET /panic HTTP/1.1\r\n\r\n", "HTTP/1.1 500", 33);
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
    fn a_header_that_comes_twice_says_nothing() {
        let responder = responder();
        let told = |headers: &str| {
            let text = ask(responder.addr, &format!("GET /host?a=b HTTP/1.1\r\n{headers}\r\n"));
            assert!(text.contains("\r\nX-Seen: yes\r\n"), "{text}");
            text.split_once("\r\n\r\n").unwrap().1.to_owned()
        };
        assert_eq!(told("HOST:  one \r\n"), "Some(\"one\") \"a=b\"");
        assert_eq!(told("Host: one\r\nhost: two\r\n"), "None \"a=b\"");
        assert_eq!(told(""), "None \"a=b\"");
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
