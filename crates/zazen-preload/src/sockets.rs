//! Sockets of the far side: internet sockets, where they are asked to be forwarded.
//!
//! Whether a new socket is forwarded is decided when it is made, before anybody knows its address:
//! all of AF_INET and AF_INET6 are, or none.

use crate::far::{Address, PxOpened, far};
use crate::open::enter;
use crate::real::{give, hooks};
use crate::table::{self, FarFile};
use crate::transport::tagged;
use crate::{data, events, fault, heard, state, unix_names};
use std::ffi::{c_int, c_uint, c_void};

/// The program's address, for the far side.
unsafe fn far_address(address: *const libc::sockaddr, length: libc::socklen_t) -> Result<Address, c_int> {
    let mut far = Address::default();
    if length as usize > far.data.len() {
        return Err(libc::EINVAL);
    }
    if !fault::readable(address, length as usize) {
        return Err(libc::EFAULT);
    }
    // SAFETY: the program's bytes.
    unsafe { std::ptr::copy_nonoverlapping(address.cast::<u8>(), far.data.as_mut_ptr(), length as usize) };
    far.bytes = length;
    Ok(far)
}

/// The far side's address, for the program: cut to its room, its length told in full.
unsafe fn give_address(far: &Address, address: *mut libc::sockaddr, length: *mut libc::socklen_t) {
    if address.is_null() || length.is_null() {
        return;
    }
    // SAFETY: the program's memory, of the length that it says.
    unsafe {
        let room = (*length as usize).min(far.bytes as usize).min(far.data.len());
        std::ptr::copy_nonoverlapping(far.data.as_ptr(), address.cast::<u8>(), room);
        *length = far.bytes;
    }
}

fn send_far(
    entry: FarFile,
    data: *const c_void,
    count: usize,
    flags: c_int,
    address: Option<&Address>,
) -> Result<isize, c_int> {
    if !fault::readable(data, count.min(crate::far::BYTES_MAX)) {
        return Err(libc::EFAULT);
    }
    let address = address.map_or(std::ptr::null(), |address| std::ptr::from_ref(address).cast());
    let (id, count) = (entry.id(), count.min(crate::far::BYTES_MAX) as u64);
    match tagged(|tag| far!(px_send(id, tag, flags, address, data, count))) {
        Err(libc::EPIPE) => {
            if flags & libc::MSG_NOSIGNAL == 0 {
                data::raise(libc::SIGPIPE);
            }
            Err(libc::EPIPE)
        }
        other => other.map(|sent| sent as isize),
    }
}

fn receive(
    entry: FarFile,
    data: *mut c_void,
    count: usize,
    flags: &mut c_int,
    address: &mut Address,
) -> Result<isize, c_int> {
    let mut room = count.min(crate::far::BYTES_MAX) as u64;
    if !fault::writable(data, room as usize) {
        return Err(libc::EFAULT);
    }
    let (address, flags) = (std::ptr::from_mut(address).cast(), std::ptr::from_mut(flags));
    tagged(|tag| far!(px_receive(entry.id(), tag, flags, address, data, &raw mut room)))
        .map(|got| got as isize)
}

fn accept_far(
    entry: FarFile,
    address: *mut libc::sockaddr,
    length: *mut libc::socklen_t,
    flags: c_int,
) -> Result<c_int, c_int> {
    let (mut from, mut opened) = (Address::default(), PxOpened::default());
    let kind = flags & !libc::SOCK_CLOEXEC;
    let (address_out, out) = ((&raw mut from).cast(), (&raw mut opened).cast());
    tagged(|tag| far!(px_accept(entry.id(), tag, kind, address_out, out)))?;
    let fd = enter(opened, flags & libc::SOCK_CLOEXEC != 0)?;
    // SAFETY: the program's memory.
    unsafe { give_address(&from, address, length) };
    Ok(fd)
}

hooks! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        let plain = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
        let wanted = state::forwards_sockets()
            && (domain == libc::AF_INET || domain == libc::AF_INET6)
            && (plain == libc::SOCK_STREAM || plain == libc::SOCK_DGRAM);
        if !wanted {
            return next(domain, kind, protocol);
        }
        let mut opened = PxOpened::default();
        let asked = kind & !libc::SOCK_CLOEXEC;
        give(far!(px_socket(domain, asked, protocol, (&raw mut opened).cast()))
            .and_then(|_| enter(opened, kind & libc::SOCK_CLOEXEC != 0)))
    }

    fn bind(fd: c_int, address: *const libc::sockaddr, length: libc::socklen_t) -> c_int {
        let Some(entry) = table::entry(fd) else {
            heard::hear();
            return match unix_names::local(address, length, true) {
                None => next(fd, address, length),
                Some(Err(error)) => give(Err(error)),
                Some(Ok(local)) => {
                    let result = next(fd, local.as_ptr(), local.length());
                    if result != 0 {
                        let error = crate::real::errno();
                        local.undo();
                        crate::real::set_errno(error);
                    }
                    result
                }
            };
        };
        give(far_address(address, length).and_then(|far| far!(px_bind(entry.id(), (&raw const far).cast()))))
    }

    fn connect(fd: c_int, address: *const libc::sockaddr, length: libc::socklen_t) -> c_int {
        let Some(entry) = table::entry(fd) else {
            heard::hear();
            return match unix_names::local(address, length, false) {
                None => next(fd, address, length),
                Some(Err(error)) => give(Err(error)),
                Some(Ok(local)) => next(fd, local.as_ptr(), local.length()),
            };
        };
        let outcome = far_address(address, length)
            .and_then(|far| tagged(|tag| far!(px_connect(entry.id(), tag, (&raw const far).cast()))));
        if outcome == Err(libc::EINPROGRESS) {
            events::would_block(entry.id());
        }
        give(outcome)
    }

    fn listen(fd: c_int, backlog: c_int) -> c_int {
        let Some(entry) = table::entry(fd) else { return next(fd, backlog) };
        give(far!(px_listen(entry.id(), backlog)))
    }

    fn accept(fd: c_int, address: *mut libc::sockaddr, length: *mut libc::socklen_t) -> c_int {
        let Some(entry) = table::entry(fd) else {
            let room = if length.is_null() { 0 } else { *length };
            heard::hear();
            let result = next(fd, address, length);
            if result >= 0 {
                unix_names::rename(address, length, room);
            }
            return result;
        };
        give(accept_far(entry, address, length, 0))
    }

    fn accept4(fd: c_int, address: *mut libc::sockaddr, length: *mut libc::socklen_t, flags: c_int) -> c_int {
        let Some(entry) = table::entry(fd) else {
            let room = if length.is_null() { 0 } else { *length };
            heard::hear();
            let result = next(fd, address, length, flags);
            if result >= 0 {
                unix_names::rename(address, length, room);
            }
            return result;
        };
        give(accept_far(entry, address, length, flags))
    }

    fn send(fd: c_int, data: *const c_void, count: usize, flags: c_int) -> isize {
        let Some(entry) = table::entry(fd) else { return next(fd, data, count, flags) };
        give(send_checked(entry, data, count, flags, None))
    }

    fn sendto(
        fd: c_int, data: *const c_void, count: usize, flags: c_int, address: *const libc::sockaddr,
        length: libc::socklen_t,
    ) -> isize {
        let Some(entry) = table::entry(fd) else {
            return match unix_names::local(address, length, false) {
                None => next(fd, data, count, flags, address, length),
                Some(Err(error)) => give(Err(error)),
                Some(Ok(local)) => next(fd, data, count, flags, local.as_ptr(), local.length()),
            };
        };
        if address.is_null() {
            return give(send_checked(entry, data, count, flags, None));
        }
        give(far_address(address, length).and_then(|far| send_checked(entry, data, count, flags, Some(&far))))
    }

    fn recv(fd: c_int, data: *mut c_void, count: usize, flags: c_int) -> isize {
        let Some(entry) = table::entry(fd) else {
            heard::hear();
            return next(fd, data, count, flags);
        };
        let mut flags = flags;
        give(receive_checked(entry, data, count, &mut flags, &mut Address::default()))
    }

    fn recvfrom(
        fd: c_int, data: *mut c_void, count: usize, flags: c_int, address: *mut libc::sockaddr,
        length: *mut libc::socklen_t,
    ) -> isize {
        let Some(entry) = table::entry(fd) else {
            heard::hear();
            let room = if length.is_null() { 0 } else { *length };
            let result = next(fd, data, count, flags, address, length);
            if result >= 0 {
                unix_names::rename(address, length, room);
            }
            return result;
        };
        let (mut flags, mut from) = (flags, Address::default());
        give(receive_checked(entry, data, count, &mut flags, &mut from).inspect(|_| {
            give_address(&from, address, length);
        }))
    }

    fn sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> isize {
        let Some(entry) = table::entry(fd) else {
            if message.is_null() {
                return next(fd, message, flags);
            }
            return match unix_names::local((*message).msg_name.cast(), (*message).msg_namelen, false) {
                None => next(fd, message, flags),
                Some(Err(error)) => give(Err(error)),
                Some(Ok(local)) => {
                    let mut copy = *message;
                    copy.msg_name = local.as_ptr().cast_mut().cast();
                    copy.msg_namelen = local.length();
                    next(fd, &raw const copy, flags)
                }
            };
        };
        give(send_message(entry, &*message, flags))
    }

    fn recvmsg(fd: c_int, message: *mut libc::msghdr, flags: c_int) -> isize {
        let Some(entry) = table::entry(fd) else {
            heard::hear();
            let room = if message.is_null() { 0 } else { (*message).msg_namelen };
            let result = next(fd, message, flags);
            if result >= 0 && room > 0 {
                unix_names::rename((*message).msg_name.cast(), &raw mut (*message).msg_namelen, room);
            }
            if result >= 0 && table::any() {
                recognize(&*message);
            }
            return result;
        };
        give(receive_message(entry, &mut *message, flags))
    }

    fn sendmmsg(fd: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int) -> c_int {
        let Some(entry) = table::entry(fd) else { return next(fd, messages, count, flags) };
        for at in 0..count as usize {
            let one = &mut *messages.add(at);
            match send_message(entry, &one.msg_hdr, flags) {
                Ok(sent) => one.msg_len = sent as c_uint,
                Err(error) => return if at == 0 { give(Err(error)) } else { at as c_int },
            }
        }
        count as c_int
    }

    fn recvmmsg(
        fd: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int, timeout: *mut libc::timespec,
    ) -> c_int {
        let Some(entry) = table::entry(fd) else {
            heard::hear();
            return next(fd, messages, count, flags, timeout);
        };
        let once = flags & libc::MSG_WAITFORONE != 0;
        for at in 0..count as usize {
            let one = &mut *messages.add(at);
            let more = if at > 0 && once { libc::MSG_DONTWAIT } else { 0 };
            match receive_message(entry, &mut one.msg_hdr, flags & !libc::MSG_WAITFORONE | more) {
                Ok(got) => one.msg_len = got as c_uint,
                Err(error) => return if at == 0 { give(Err(error)) } else { at as c_int },
            }
        }
        count as c_int
    }

    fn getsockopt(
        fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut libc::socklen_t,
    ) -> c_int {
        let Some(entry) = table::entry(fd) else {
            heard::hear();
            return next(fd, level, name, value, length);
        };
        if length.is_null() {
            return give(Err(libc::EFAULT));
        }
        let mut room = u64::from((*length).min(1024));
        give(socket_only(entry).and_then(|()| {
            far!(px_getsockopt(entry.id(), level, name, value, &raw mut room)).inspect(|_| {
                *length = room as libc::socklen_t;
            })
        }))
    }

    fn setsockopt(
        fd: c_int, level: c_int, name: c_int, value: *const c_void, length: libc::socklen_t,
    ) -> c_int {
        let Some(entry) = table::entry(fd) else { return next(fd, level, name, value, length) };
        give(socket_only(entry)
            .and_then(|()| far!(px_setsockopt(entry.id(), level, name, value, u64::from(length)))))
    }

    fn getsockname(fd: c_int, address: *mut libc::sockaddr, length: *mut libc::socklen_t) -> c_int {
        let Some(entry) = table::entry(fd) else {
            let room = if length.is_null() { 0 } else { *length };
            let result = next(fd, address, length);
            if result >= 0 {
                unix_names::rename(address, length, room);
            }
            return result;
        };
        give(socket_name(entry, 0, address, length))
    }

    fn getpeername(fd: c_int, address: *mut libc::sockaddr, length: *mut libc::socklen_t) -> c_int {
        let Some(entry) = table::entry(fd) else {
            let room = if length.is_null() { 0 } else { *length };
            heard::hear();
            let result = next(fd, address, length);
            if result >= 0 {
                unix_names::rename(address, length, room);
            }
            return result;
        };
        give(socket_name(entry, 1, address, length))
    }

    fn shutdown(fd: c_int, how: c_int) -> c_int {
        let Some(entry) = table::entry(fd) else { return next(fd, how) };
        give(socket_only(entry).and_then(|()| far!(px_shutdown(entry.id(), how))))
    }
}

/// Descriptors that came as a message may be copies of placeholders that this process has.
unsafe fn recognize(message: &libc::msghdr) {
    // SAFETY: the kernel's message.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if ((*header).cmsg_level, (*header).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let bytes = ((*header).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                for at in 0..bytes / size_of::<c_int>() {
                    let fd = libc::CMSG_DATA(header).cast::<c_int>().add(at).read_unaligned();
                    let Some(inode) = table::placeholder_inode(fd) else { continue };
                    let same = table::each().find(|(own, _)| table::placeholder_inode(*own) == Some(inode));
                    if let Some((_, entry)) = same {
                        table::set(fd, entry);
                    }
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

fn socket_only(entry: FarFile) -> Result<(), c_int> {
    if entry.is_socket() { Ok(()) } else { Err(libc::ENOTSOCK) }
}

fn send_checked(
    entry: FarFile,
    data: *const c_void,
    count: usize,
    flags: c_int,
    address: Option<&Address>,
) -> Result<isize, c_int> {
    socket_only(entry)?;
    let sent = send_far(entry, data, count, flags, address);
    if sent == Err(libc::EAGAIN) {
        events::would_block(entry.id());
    }
    sent
}

fn receive_checked(
    entry: FarFile,
    data: *mut c_void,
    count: usize,
    flags: &mut c_int,
    address: &mut Address,
) -> Result<isize, c_int> {
    socket_only(entry)?;
    receive(entry, data, count, flags, address)
}

fn socket_name(
    entry: FarFile,
    peer: c_int,
    address: *mut libc::sockaddr,
    length: *mut libc::socklen_t,
) -> Result<c_int, c_int> {
    socket_only(entry)?;
    let mut far = Address::default();
    far!(px_sockname(entry.id(), peer, (&raw mut far).cast()))?;
    // SAFETY: the program's memory.
    unsafe { give_address(&far, address, length) };
    Ok(0)
}

/// Bytes of an iovec array.
unsafe fn total(message: &libc::msghdr) -> Result<usize, c_int> {
    let mut bytes = 0_usize;
    for at in 0..message.msg_iovlen {
        // SAFETY: the program's array.
        let part = unsafe { *message.msg_iov.add(at) };
        bytes = bytes.checked_add(part.iov_len).ok_or(libc::EINVAL)?;
    }
    Ok(bytes.min(crate::far::BYTES_MAX))
}

unsafe fn send_message(entry: FarFile, message: &libc::msghdr, flags: c_int) -> Result<isize, c_int> {
    if message.msg_controllen != 0 && !message.msg_control.is_null() {
        // Descriptors and interface numbers mean nothing over there.
        return Err(libc::EOPNOTSUPP);
    }
    // SAFETY: the program's message.
    unsafe {
        let bytes = total(message)?;
        let mut memory = Vec::with_capacity(bytes);
        for at in 0..message.msg_iovlen {
            let part = *message.msg_iov.add(at);
            let left = (bytes - memory.len()).min(part.iov_len);
            if left > 0 {
                memory.extend_from_slice(std::slice::from_raw_parts(part.iov_base.cast::<u8>(), left));
            }
        }
        let address = if message.msg_name.is_null() {
            None
        } else {
            Some(far_address(message.msg_name.cast(), message.msg_namelen)?)
        };
        send_checked(entry, memory.as_ptr().cast(), memory.len(), flags, address.as_ref())
    }
}

unsafe fn receive_message(entry: FarFile, message: &mut libc::msghdr, flags: c_int) -> Result<isize, c_int> {
    // SAFETY: the program's message.
    unsafe {
        let bytes = total(message)?;
        let mut memory = vec![0_u8; bytes];
        let (mut returned, mut from) = (flags, Address::default());
        let got = receive_checked(entry, memory.as_mut_ptr().cast(), bytes, &mut returned, &mut from)?;
        let (mut done, mut at) = (0, 0);
        while done < (got as usize).min(bytes) {
            let part = *message.msg_iov.add(at);
            let length = part.iov_len.min((got as usize).min(bytes) - done);
            std::ptr::copy_nonoverlapping(memory.as_ptr().add(done), part.iov_base.cast::<u8>(), length);
            done += length;
            at += 1;
        }
        if message.msg_name.is_null() {
            message.msg_namelen = 0;
        } else {
            let mut length = message.msg_namelen;
            give_address(&from, message.msg_name.cast(), &raw mut length);
            message.msg_namelen = length;
        }
        message.msg_controllen = 0;
        message.msg_flags = returned;
        Ok(got)
    }
}

/// recv of a program that was compiled with _FORTIFY_SOURCE.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __recv_chk(
    fd: c_int,
    data: *mut c_void,
    count: usize,
    room: usize,
    flags: c_int,
) -> isize {
    if count > room {
        std::process::abort();
    }
    // SAFETY: the caller's memory.
    unsafe { recv(fd, data, count, flags) }
}

/// The same of recvfrom.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    data: *mut c_void,
    count: usize,
    room: usize,
    flags: c_int,
    address: *mut libc::sockaddr,
    length: *mut libc::socklen_t,
) -> isize {
    if count > room {
        std::process::abort();
    }
    // SAFETY: the caller's memory.
    unsafe { recvfrom(fd, data, count, flags, address, length) }
}
