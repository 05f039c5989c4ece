! The Fortran module of Zazen: reads each frame of a dataset on exactly one MPI rank, and pushes
! frames to the nodes that will read them.
!
! It binds libzazen directly (iso_c_binding) and needs no C compiler. MPI is used through mpi_f08, so
! compile this file with the program's own MPI:
!
!   mpif90 -c "$(python -c 'import zazen; print(zazen.get_include())')/zazen.f90"
!
! Every call that can fail has an argument `status`: zazen_ok, or a negative number as zazen.h lists
! them. zazen_message() then says what failed, and the next step. A call that fails changes nothing.
! Frames, sets and iterations belong to the caller, who frees them.
!
! One thread at a time may use an object.

module zazen
  use, intrinsic :: iso_c_binding
  use mpi_f08
  implicit none
  private

  public :: zazen_dataset, zazen_runset, zazen_frames, zazen_paths, zazen_frame, zazen_writer
  public :: zazen_assignment, zazen_read_stats, zazen_counters, zazen_trajectory
  public :: zazen_open, zazen_close, zazen_has_daemon, zazen_extent, zazen_assign
  public :: zazen_path, zazen_layout, zazen_query, zazen_number_of, zazen_owners
  public :: zazen_trajectory_of, zazen_trajectory_header, zazen_trajectory_file, zazen_trajectory_trouble
  public :: zazen_read, zazen_read_many
  public :: zazen_frames_open, zazen_next, zazen_frames_remaining, zazen_frames_stats, zazen_frames_close
  public :: zazen_paths_open, zazen_paths_next, zazen_paths_remaining, zazen_paths_close
  public :: zazen_frame_number, zazen_frame_data, zazen_frame_path, zazen_frame_container
  public :: zazen_frame_source, zazen_frame_free
  public :: zazen_runset_len, zazen_runset_contains, zazen_runset_numbers, zazen_runset_free
  public :: zazen_writer_open, zazen_write, zazen_writer_counters, zazen_writer_close, zazen_writer_abandon
  public :: zazen_writer_drain, zazen_writer_problem
  public :: zazen_message, zazen_next_warning, zazen_version, zazen_ok, zazen_mpi, zazen_not_found
  public :: zazen_native, zazen_alien, zazen_backing, zazen_direct

  integer(c_int32_t), parameter :: zazen_ok = 0
  !> MPI failed, or each rank is an MPI world of its own.
  integer(c_int32_t), parameter :: zazen_mpi = -17
  !> Where a frame came from: the node's cache, pushed there or brought by an earlier miss; the backing
  !> store, through the daemon or without one.
  integer(c_int32_t), parameter :: zazen_native = 0, zazen_alien = 1, zazen_backing = 2, zazen_direct = 3
  !> The named object does not exist.
  integer(c_int32_t), parameter :: zazen_not_found = -2
  integer(c_int32_t), parameter :: invalid_argument = -1
  !> Bytes of one message, a multiple of 8: counts are default integers.
  integer(c_int64_t), parameter :: message_bytes = 2_c_int64_t**30

  !> An opened dataset.
  type :: zazen_dataset
    private
    type(c_ptr) :: handle = c_null_ptr
  end type
  !> A set of frame numbers.
  type :: zazen_runset
    private
    type(c_ptr) :: handle = c_null_ptr
  end type
  !> An iteration over frames with read-ahead.
  type :: zazen_frames
    private
    type(c_ptr) :: handle = c_null_ptr
  end type
  !> An iteration over the paths of frames.
  type :: zazen_paths
    private
    type(c_ptr) :: handle = c_null_ptr
  end type
  !> A frame in memory.
  type :: zazen_frame
    private
    type(c_ptr) :: handle = c_null_ptr
  end type
  !> A writer into the caches of many nodes.
  type :: zazen_writer
    private
    type(c_ptr) :: handle = c_null_ptr
  end type

  !> How the frames were assigned; zazen_assignment_t of zazen.h.
  type, bind(C) :: zazen_assignment
    integer(c_size_t) :: struct_size = 0
    integer(c_int64_t) :: native = 0, alien = 0, residue = 0
    integer(c_int64_t) :: total_native = 0, total_alien = 0, total_residue = 0
    integer(c_int64_t) :: bytes_sent = 0, rounds = 0, perfect_hit = 0
  end type

  !> Where the frames taken so far came from; zazen_read_stats_t of zazen.h.
  type, bind(C) :: zazen_read_stats
    integer(c_size_t) :: struct_size = 0
    integer(c_int64_t) :: native = 0, alien = 0, backing_reads = 0, bytes = 0, mended = 0
  end type

  !> Fates of pushed frames; zazen_counters_t of zazen.h.
  type, bind(C) :: zazen_counters
    integer(c_size_t) :: struct_size = 0
    integer(c_int64_t) :: submitted = 0, pushed = 0, already_there = 0, skipped_slow = 0
    integer(c_int64_t) :: skipped_no_node = 0, refused = 0, resent = 0, node_deaths = 0, bytes_pushed = 0
  end type

  !> What is known of a dataset's trajectory files; zazen_trajectory_t of zazen.h. `header_at` leads to
  !> what zazen_trajectory_header gives.
  type, bind(C) :: zazen_trajectory
    integer(c_size_t) :: struct_size = 0
    type(c_ptr) :: format_at = c_null_ptr
    integer(c_int64_t) :: atoms = 0, frames = 0, files = 0, troubles = 0
    type(c_ptr) :: header_at = c_null_ptr
    integer(c_int64_t) :: header_bytes = 0
  end type

  type, bind(C) :: open_options
    integer(c_size_t) :: struct_size = 0
    type(c_ptr) :: socket = c_null_ptr, pattern = c_null_ptr, backing = c_null_ptr
    integer(c_int64_t) :: direct = 0, timeout_ms = 0
  end type

  type, bind(C) :: frame_range
    integer(c_int64_t) :: begin = 0, end = 0, stride = 1
  end type

  type, bind(C) :: assign_options
    integer(c_size_t) :: struct_size = 0
    integer(c_int64_t) :: paper_rules = 0, bitmap_protocol = 0, alone = 0
  end type

  type, bind(C) :: read_options
    integer(c_size_t) :: struct_size = 0
    integer(c_int64_t) :: memory_max = 0, readers = 0, unchecked = 0, ordered = 0
  end type

  type, bind(C) :: writer_options
    integer(c_size_t) :: struct_size = 0
    type(c_ptr) :: nodes = c_null_ptr, key = c_null_ptr, pattern = c_null_ptr
    integer(c_int64_t) :: block = 0, window_frames = 0, window_bytes = 0, timeout_ms = 0, copies = 0
  end type

  type, bind(C) :: collectives
    integer(c_size_t) :: struct_size = 0
    type(c_ptr) :: context = c_null_ptr
    integer(c_int64_t) :: rank = 0, size = 0
    type(c_funptr) :: allreduce_sum = c_null_funptr, allreduce_or = c_null_funptr
    type(c_funptr) :: alltoall = c_null_funptr, alltoallv = c_null_funptr
    type(c_funptr) :: broadcast = c_null_funptr, allreduce_xor = c_null_funptr
  end type

  !> What the collectives are told: a duplicate of the caller's communicator.
  type :: ranks_context
    type(MPI_Comm) :: comm
    integer :: rank = 0, size = 0
  end type

  interface
    function c_last_error() bind(C, name="zazen_last_error") result(text)
      import :: c_ptr
      type(c_ptr) :: text
    end function
    function c_check_launcher(world) bind(C, name="zazen_check_launcher") result(status)
      import :: c_int32_t, c_int64_t
      integer(c_int64_t), value :: world
      integer(c_int32_t) :: status
    end function
    function c_open(path, options, dataset) bind(C, name="zazen_open") result(status)
      import :: c_ptr, c_int32_t, c_char, open_options
      character(kind=c_char), intent(in) :: path(*)
      type(open_options), intent(in) :: options
      type(c_ptr), intent(inout) :: dataset
      integer(c_int32_t) :: status
    end function
    subroutine c_close(dataset) bind(C, name="zazen_close")
      import :: c_ptr
      type(c_ptr), value :: dataset
    end subroutine
    function c_has_daemon(dataset) bind(C, name="zazen_has_daemon") result(has)
      import :: c_ptr, c_int32_t
      type(c_ptr), value :: dataset
      integer(c_int32_t) :: has
    end function
    function c_extent(dataset, set) bind(C, name="zazen_extent") result(status)
      import :: c_ptr, c_int32_t
      type(c_ptr), value :: dataset
      type(c_ptr), intent(inout) :: set
      integer(c_int32_t) :: status
    end function
    function c_assign(dataset, range, options, everyone, found, set) &
        bind(C, name="zazen_assign") result(status)
      import :: c_ptr, c_int32_t, assign_options, zazen_assignment
      type(c_ptr), value :: dataset, range, everyone
      type(assign_options), intent(in) :: options
      type(zazen_assignment), intent(inout) :: found
      type(c_ptr), intent(inout) :: set
      integer(c_int32_t) :: status
    end function
    function c_read(dataset, number, frame) bind(C, name="zazen_read") result(status)
      import :: c_ptr, c_int32_t, c_int64_t
      type(c_ptr), value :: dataset
      integer(c_int64_t), value :: number
      type(c_ptr), intent(inout) :: frame
      integer(c_int32_t) :: status
    end function
    function c_path(dataset) bind(C, name="zazen_path") result(path)
      import :: c_ptr
      type(c_ptr), value :: dataset
      type(c_ptr) :: path
    end function
    function c_version() bind(C, name="zazen_version") result(text)
      import :: c_ptr
      type(c_ptr) :: text
    end function
    function c_next_warning() bind(C, name="zazen_next_warning") result(text)
      import :: c_ptr
      type(c_ptr) :: text
    end function
    function c_layout(dataset, text, capacity, length) bind(C, name="zazen_layout") result(status)
      import :: c_ptr, c_int32_t, c_size_t, c_char
      type(c_ptr), value :: dataset
      character(kind=c_char), intent(inout) :: text(*)
      integer(c_size_t), value :: capacity
      integer(c_size_t), intent(inout) :: length
      integer(c_int32_t) :: status
    end function
    function c_trajectory(dataset, trajectory) bind(C, name="zazen_trajectory") result(status)
      import :: c_ptr, c_int32_t, zazen_trajectory
      type(c_ptr), value :: dataset
      type(zazen_trajectory), intent(inout) :: trajectory
      integer(c_int32_t) :: status
    end function
    function c_trajectory_file(dataset, at) bind(C, name="zazen_trajectory_file") result(path)
      import :: c_ptr, c_int64_t
      type(c_ptr), value :: dataset
      integer(c_int64_t), value :: at
      type(c_ptr) :: path
    end function
    function c_trajectory_trouble(dataset, at) bind(C, name="zazen_trajectory_trouble") result(text)
      import :: c_ptr, c_int64_t
      type(c_ptr), value :: dataset
      integer(c_int64_t), value :: at
      type(c_ptr) :: text
    end function
    function c_writer_drain(writer) bind(C, name="zazen_writer_drain") result(status)
      import :: c_ptr, c_int32_t
      type(c_ptr), value :: writer
      integer(c_int32_t) :: status
    end function
    function c_writer_problem(writer, at) bind(C, name="zazen_writer_problem") result(text)
      import :: c_ptr, c_int64_t
      type(c_ptr), value :: writer
      integer(c_int64_t), value :: at
      type(c_ptr) :: text
    end function
    function c_query(dataset, range, native, alien) bind(C, name="zazen_query") result(status)
      import :: c_ptr, c_int32_t, frame_range
      type(c_ptr), value :: dataset
      type(frame_range), intent(in) :: range
      type(c_ptr), intent(inout) :: native, alien
      integer(c_int32_t) :: status
    end function
    function c_number_of(dataset, name, number) bind(C, name="zazen_number_of") result(status)
      import :: c_ptr, c_int32_t, c_int64_t, c_char
      type(c_ptr), value :: dataset
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), intent(inout) :: number
      integer(c_int32_t) :: status
    end function
    function c_owners(dataset, everyone, owners, count) bind(C, name="zazen_owners") result(status)
      import :: c_ptr, c_int32_t, c_int64_t
      type(c_ptr), value :: dataset, everyone
      integer(c_int32_t), intent(inout) :: owners(*)
      integer(c_int64_t), value :: count
      integer(c_int32_t) :: status
    end function
    function c_read_many(dataset, numbers, count, frames, statuses) &
        bind(C, name="zazen_read_many") result(status)
      import :: c_ptr, c_int32_t, c_int64_t
      type(c_ptr), value :: dataset, statuses
      integer(c_int64_t), intent(in) :: numbers(*)
      integer(c_int64_t), value :: count
      type(c_ptr), intent(inout) :: frames(*)
      integer(c_int32_t) :: status
    end function
    function c_frames_remaining(frames) bind(C, name="zazen_frames_remaining") result(count)
      import :: c_ptr, c_int64_t
      type(c_ptr), value :: frames
      integer(c_int64_t) :: count
    end function
    function c_frame_container(frame, offset) bind(C, name="zazen_frame_container") result(path)
      import :: c_ptr, c_int64_t
      type(c_ptr), value :: frame
      integer(c_int64_t), intent(inout) :: offset
      type(c_ptr) :: path
    end function
    function c_frame_source(frame) bind(C, name="zazen_frame_source") result(source)
      import :: c_ptr, c_int32_t
      type(c_ptr), value :: frame
      integer(c_int32_t) :: source
    end function
    function c_runset_contains(set, number) bind(C, name="zazen_runset_contains") result(contains)
      import :: c_ptr, c_int32_t, c_int64_t
      type(c_ptr), value :: set
      integer(c_int64_t), value :: number
      integer(c_int32_t) :: contains
    end function
    function c_runset_numbers(set, rank, numbers, capacity) &
        bind(C, name="zazen_runset_numbers") result(count)
      import :: c_ptr, c_int64_t, c_size_t
      type(c_ptr), value :: set
      integer(c_int64_t), value :: rank
      integer(c_int64_t), intent(inout) :: numbers(*)
      integer(c_size_t), value :: capacity
      integer(c_size_t) :: count
    end function
    subroutine c_writer_abandon(writer) bind(C, name="zazen_writer_abandon")
      import :: c_ptr
      type(c_ptr), value :: writer
    end subroutine
    function c_frames(dataset, set, options, frames) bind(C, name="zazen_frames") result(status)
      import :: c_ptr, c_int32_t, read_options
      type(c_ptr), value :: dataset, set
      type(read_options), intent(in) :: options
      type(c_ptr), intent(inout) :: frames
      integer(c_int32_t) :: status
    end function
    function c_next(frames, frame) bind(C, name="zazen_next") result(status)
      import :: c_ptr, c_int32_t
      type(c_ptr), value :: frames
      type(c_ptr), intent(inout) :: frame
      integer(c_int32_t) :: status
    end function
    function c_paths(dataset, set, paths) bind(C, name="zazen_paths") result(status)
      import :: c_ptr, c_int32_t
      type(c_ptr), value :: dataset, set
      type(c_ptr), intent(inout) :: paths
      integer(c_int32_t) :: status
    end function
    function c_paths_next(paths, number, path, frame) bind(C, name="zazen_paths_next") result(status)
      import :: c_ptr, c_int32_t, c_int64_t
      type(c_ptr), value :: paths
      integer(c_int64_t), intent(inout) :: number
      type(c_ptr), intent(inout) :: path, frame
      integer(c_int32_t) :: status
    end function
    function c_paths_remaining(paths) bind(C, name="zazen_paths_remaining") result(count)
      import :: c_ptr, c_int64_t
      type(c_ptr), value :: paths
      integer(c_int64_t) :: count
    end function
    subroutine c_paths_close(paths) bind(C, name="zazen_paths_close")
      import :: c_ptr
      type(c_ptr), value :: paths
    end subroutine
    function c_frames_stats(frames, stats) bind(C, name="zazen_frames_stats") result(status)
      import :: c_ptr, c_int32_t, zazen_read_stats
      type(c_ptr), value :: frames
      type(zazen_read_stats), intent(inout) :: stats
      integer(c_int32_t) :: status
    end function
    subroutine c_frames_close(frames) bind(C, name="zazen_frames_close")
      import :: c_ptr
      type(c_ptr), value :: frames
    end subroutine
    function c_frame_number(frame) bind(C, name="zazen_frame_number") result(number)
      import :: c_ptr, c_int64_t
      type(c_ptr), value :: frame
      integer(c_int64_t) :: number
    end function
    function c_frame_data(frame) bind(C, name="zazen_frame_data") result(data)
      import :: c_ptr
      type(c_ptr), value :: frame
      type(c_ptr) :: data
    end function
    function c_frame_bytes(frame) bind(C, name="zazen_frame_bytes") result(bytes)
      import :: c_ptr, c_int64_t
      type(c_ptr), value :: frame
      integer(c_int64_t) :: bytes
    end function
    function c_frame_path(frame) bind(C, name="zazen_frame_path") result(path)
      import :: c_ptr
      type(c_ptr), value :: frame
      type(c_ptr) :: path
    end function
    subroutine c_frame_free(frame) bind(C, name="zazen_frame_free")
      import :: c_ptr
      type(c_ptr), value :: frame
    end subroutine
    function c_runset_len(set) bind(C, name="zazen_runset_len") result(count)
      import :: c_ptr, c_int64_t
      type(c_ptr), value :: set
      integer(c_int64_t) :: count
    end function
    subroutine c_runset_free(set) bind(C, name="zazen_runset_free")
      import :: c_ptr
      type(c_ptr), value :: set
    end subroutine
    function c_writer_open(dataset, options, writer) bind(C, name="zazen_writer_open") result(status)
      import :: c_ptr, c_int32_t, c_char, writer_options
      character(kind=c_char), intent(in) :: dataset(*)
      type(writer_options), intent(in) :: options
      type(c_ptr), intent(inout) :: writer
      integer(c_int32_t) :: status
    end function
    function c_write(writer, number, name, data, bytes) bind(C, name="zazen_write") result(status)
      import :: c_ptr, c_int32_t, c_int64_t
      type(c_ptr), value :: writer, name, data
      integer(c_int64_t), value :: number, bytes
      integer(c_int32_t) :: status
    end function
    function c_writer_counters(writer, counters) bind(C, name="zazen_writer_counters") result(status)
      import :: c_ptr, c_int32_t, zazen_counters
      type(c_ptr), value :: writer
      type(zazen_counters), intent(inout) :: counters
      integer(c_int32_t) :: status
    end function
    function c_writer_close(writer, counters) bind(C, name="zazen_writer_close") result(status)
      import :: c_ptr, c_int32_t, zazen_counters
      type(c_ptr), value :: writer
      type(zazen_counters), intent(inout) :: counters
      integer(c_int32_t) :: status
    end function
    function c_strlen(text) bind(C, name="strlen") result(length)
      import :: c_ptr, c_size_t
      type(c_ptr), value :: text
      integer(c_size_t) :: length
    end function
  end interface

contains

  ! Text.

  !> What the last call that failed on this thread says.
  function zazen_message() result(text)
    character(len=:), allocatable :: text
    text = fortran_text(c_last_error())
  end function

  !> This process's oldest warning that was not taken, such as that no daemon answers; empty if there
  !> is none.
  function zazen_next_warning() result(text)
    character(len=:), allocatable :: text
    text = fortran_text(c_next_warning())
  end function

  !> The library's version, such as "0.1.0".
  function zazen_version() result(text)
    character(len=:), allocatable :: text
    text = fortran_text(c_version())
  end function

  function fortran_text(from) result(text)
    type(c_ptr), intent(in) :: from
    character(len=:), allocatable :: text
    character(kind=c_char), pointer :: chars(:)
    integer :: at, length
    if (.not. c_associated(from)) then
      text = ""
      return
    end if
    length = int(c_strlen(from))
    allocate(character(len=length) :: text)
    if (length == 0) return
    call c_f_pointer(from, chars, [length])
    do at = 1, length
      text(at:at) = chars(at)
    end do
  end function

  function c_text(text) result(chars)
    character(len=*), intent(in) :: text
    character(kind=c_char), allocatable :: chars(:)
    integer :: at
    allocate(chars(len_trim(text) + 1))
    do at = 1, len_trim(text)
      chars(at) = text(at:at)
    end do
    chars(len_trim(text) + 1) = c_null_char
  end function

  !> The address of an optional text that `kept` holds; null without one.
  function kept_text(text, kept) result(address)
    character(len=*), intent(in), optional :: text
    character(kind=c_char), allocatable, target, intent(out) :: kept(:)
    type(c_ptr) :: address
    address = c_null_ptr
    if (.not. present(text)) return
    kept = c_text(text)
    address = c_loc(kept)
  end function

  ! Datasets.

  !> Opens the dataset whose directory is `path`. `pattern`: the pattern of file names; `socket`: the
  !> daemon's socket; `backing`: a served backing store; `direct`: ask no daemon; `timeout`: seconds
  !> of silence after which a daemon counts as hung. Without them: as zazen_open of zazen.h.
  subroutine zazen_open(path, dataset, status, pattern, socket, backing, direct, timeout)
    character(len=*), intent(in) :: path
    type(zazen_dataset), intent(inout) :: dataset
    integer(c_int32_t), intent(out) :: status
    character(len=*), intent(in), optional :: pattern, socket, backing
    logical, intent(in), optional :: direct
    real, intent(in), optional :: timeout
    type(open_options) :: options
    character(kind=c_char), allocatable, target :: texts(:), patterns(:), backings(:)
    options%struct_size = c_sizeof(options)
    options%socket = kept_text(socket, texts)
    options%pattern = kept_text(pattern, patterns)
    options%backing = kept_text(backing, backings)
    if (present(direct)) options%direct = merge(1_c_int64_t, 0_c_int64_t, direct)
    if (present(timeout)) options%timeout_ms = max(1_c_int64_t, nint(timeout * 1000., c_int64_t))
    status = c_open(c_text(path), options, dataset%handle)
  end subroutine

  !> Closes a dataset. Frames and iterations of it stay valid.
  subroutine zazen_close(dataset)
    type(zazen_dataset), intent(inout) :: dataset
    call c_close(dataset%handle)
    dataset%handle = c_null_ptr
  end subroutine

  !> Whether a daemon answered when the dataset was opened.
  logical function zazen_has_daemon(dataset)
    type(zazen_dataset), intent(in) :: dataset
    zazen_has_daemon = c_has_daemon(dataset%handle) /= 0
  end function

  !> The dataset's absolute path.
  function zazen_path(dataset) result(path)
    type(zazen_dataset), intent(in) :: dataset
    character(len=:), allocatable :: path
    path = fortran_text(c_path(dataset%handle))
  end function

  !> How numbers map to files, such as "frame-{n:07}.dcd"; empty if it is not known.
  subroutine zazen_layout(dataset, text, status)
    type(zazen_dataset), intent(in) :: dataset
    character(len=:), allocatable, intent(out) :: text
    integer(c_int32_t), intent(out) :: status
    character(kind=c_char) :: room(8192)
    integer(c_size_t) :: length
    integer :: at
    length = 0
    status = c_layout(dataset%handle, room, size(room, kind=c_size_t), length)
    if (status /= zazen_ok) length = 0
    allocate(character(len=int(length)) :: text)
    do at = 1, int(length)
      text(at:at) = room(at)
    end do
  end subroutine

  !> Describes the trajectory files that hold the dataset's frames, and their `format`, such as "dcd".
  !> zazen_not_found if its frames are not those of trajectory files.
  subroutine zazen_trajectory_of(dataset, trajectory, format, status)
    type(zazen_dataset), intent(in) :: dataset
    type(zazen_trajectory), intent(out) :: trajectory
    character(len=:), allocatable, intent(out) :: format
    integer(c_int32_t), intent(out) :: status
    trajectory%struct_size = c_sizeof(trajectory)
    status = c_trajectory(dataset%handle, trajectory)
    format = fortran_text(trajectory%format_at)
  end subroutine

  !> The bytes before the first frame of the first file, where a decoder needs them; else none. They
  !> live as long as the dataset.
  function zazen_trajectory_header(trajectory) result(bytes)
    type(zazen_trajectory), intent(in) :: trajectory
    integer(c_int8_t), pointer :: bytes(:)
    integer(c_int8_t), target, save :: nothing(0)
    bytes => nothing
    if (trajectory%header_bytes > 0) call c_f_pointer(trajectory%header_at, bytes, [trajectory%header_bytes])
  end function

  !> The absolute path of trajectory file `at`, from 0 on; empty if there is none.
  function zazen_trajectory_file(dataset, at) result(path)
    type(zazen_dataset), intent(in) :: dataset
    integer(c_int64_t), intent(in) :: at
    character(len=:), allocatable :: path
    path = fortran_text(c_trajectory_file(dataset%handle, at))
  end function

  !> What is wrong with the trajectory files, from 0 on, with file, frame and byte offset; empty if
  !> there is no more.
  function zazen_trajectory_trouble(dataset, at) result(text)
    type(zazen_dataset), intent(in) :: dataset
    integer(c_int64_t), intent(in) :: at
    character(len=:), allocatable :: text
    text = fortran_text(c_trajectory_trouble(dataset%handle, at))
  end function

  !> What this node's cache holds of the frames `first`, `first + stride`, … up to `last`: frames that
  !> were pushed (natives), and frames that an earlier miss brought (aliens).
  subroutine zazen_query(dataset, first, last, stride, native, alien, status)
    type(zazen_dataset), intent(in) :: dataset
    integer(c_int64_t), intent(in) :: first, last, stride
    type(zazen_runset), intent(inout) :: native, alien
    integer(c_int32_t), intent(out) :: status
    status = c_query(dataset%handle, frame_range(first, last, stride), native%handle, alien%handle)
  end subroutine

  !> The number of the frame whose file is `name`, a path relative to the dataset or an absolute one.
  subroutine zazen_number_of(dataset, name, number, status)
    type(zazen_dataset), intent(in) :: dataset
    character(len=*), intent(in) :: name
    integer(c_int64_t), intent(inout) :: number
    integer(c_int32_t), intent(out) :: status
    status = c_number_of(dataset%handle, c_text(name), number)
  end subroutine

  !> For each frame that exists, in ascending order, the rank of `comm` whose node holds it, and -1 if
  !> no node does; collective. `owners` has as many elements as frames exist (zazen_extent).
  subroutine zazen_owners(dataset, owners, status, comm)
    type(zazen_dataset), intent(in) :: dataset
    integer(c_int32_t), intent(inout) :: owners(:)
    integer(c_int32_t), intent(out) :: status
    type(MPI_Comm), intent(in), optional :: comm
    type(collectives), target :: everyone
    type(ranks_context), target :: context
    type(c_ptr) :: everyone_at
    everyone_at = c_null_ptr
    if (present(comm)) then
      call join(comm, context, everyone, status)
      if (status /= zazen_ok) return
      everyone_at = c_loc(everyone)
    end if
    status = c_owners(dataset%handle, everyone_at, owners, size(owners, kind=c_int64_t))
    if (present(comm)) call MPI_Comm_free(context%comm)
  end subroutine

  !> The frame numbers that exist.
  subroutine zazen_extent(dataset, set, status)
    type(zazen_dataset), intent(in) :: dataset
    type(zazen_runset), intent(inout) :: set
    integer(c_int32_t), intent(out) :: status
    status = c_extent(dataset%handle, set%handle)
  end subroutine

  !> Agrees with the other ranks of `comm` on which rank reads which frame; collective. Without
  !> `comm` this process reads all. `first`, `last`, `stride`: only these frames (all three or none).
  !> `alone`: without `comm`, although a launcher has started several ranks.
  subroutine zazen_assign(dataset, set, status, comm, first, last, stride, paper_rules, bitmaps, alone, found)
    type(zazen_dataset), intent(in) :: dataset
    type(zazen_runset), intent(inout) :: set
    integer(c_int32_t), intent(out) :: status
    type(MPI_Comm), intent(in), optional :: comm
    integer(c_int64_t), intent(in), optional :: first, last, stride
    logical, intent(in), optional :: paper_rules, bitmaps, alone
    type(zazen_assignment), intent(out), optional :: found
    type(zazen_assignment) :: told
    type(assign_options) :: options
    type(frame_range), target :: range
    type(collectives), target :: everyone
    type(ranks_context), target :: context
    type(c_ptr) :: range_at, everyone_at
    options%struct_size = c_sizeof(options)
    if (present(paper_rules)) options%paper_rules = merge(1_c_int64_t, 0_c_int64_t, paper_rules)
    if (present(bitmaps)) options%bitmap_protocol = merge(1_c_int64_t, 0_c_int64_t, bitmaps)
    if (present(alone)) options%alone = merge(1_c_int64_t, 0_c_int64_t, alone)
    told%struct_size = c_sizeof(told)
    range_at = c_null_ptr
    if (present(first) .or. present(last) .or. present(stride)) then
      if (.not. (present(first) .and. present(last) .and. present(stride))) then
        status = invalid_argument
        return
      end if
      range = frame_range(first, last, stride)
      range_at = c_loc(range)
    end if
    everyone_at = c_null_ptr
    if (present(comm)) then
      call join(comm, context, everyone, status)
      if (status /= zazen_ok) return
      everyone_at = c_loc(everyone)
    end if
    status = c_assign(dataset%handle, range_at, options, everyone_at, told, set%handle)
    if (present(comm)) call MPI_Comm_free(context%comm)
    if (present(found)) found = told
  end subroutine

  !> How many numbers are in a set.
  function zazen_runset_len(set) result(count)
    type(zazen_runset), intent(in) :: set
    integer(c_int64_t) :: count
    count = c_runset_len(set%handle)
  end function

  !> Whether a number is in a set.
  logical function zazen_runset_contains(set, number)
    type(zazen_runset), intent(in) :: set
    integer(c_int64_t), intent(in) :: number
    zazen_runset_contains = c_runset_contains(set%handle, number) /= 0
  end function

  !> The numbers of a set in ascending order, from the `skip`-th on (0 is the smallest), as far as
  !> `numbers` has room; returns how many.
  function zazen_runset_numbers(set, numbers, skip) result(count)
    type(zazen_runset), intent(in) :: set
    integer(c_int64_t), intent(inout) :: numbers(:)
    integer(c_int64_t), intent(in), optional :: skip
    integer(c_int64_t) :: count, from
    from = 0
    if (present(skip)) from = skip
    count = int(c_runset_numbers(set%handle, from, numbers, size(numbers, kind=c_size_t)), c_int64_t)
  end function

  !> Frees a set.
  subroutine zazen_runset_free(set)
    type(zazen_runset), intent(inout) :: set
    call c_runset_free(set%handle)
    set%handle = c_null_ptr
  end subroutine

  ! Frames.

  !> Reads one frame, whose bytes are checked.
  subroutine zazen_read(dataset, number, frame, status)
    type(zazen_dataset), intent(in) :: dataset
    integer(c_int64_t), intent(in) :: number
    type(zazen_frame), intent(inout) :: frame
    integer(c_int32_t), intent(out) :: status
    status = c_read(dataset%handle, number, frame%handle)
  end subroutine

  !> Reads the frames `numbers` in one call, in any order, each as often as it is asked for: `frames(i)`
  !> is frame `numbers(i)`. `statuses`: the status of each frame, so that one that cannot be read does
  !> not fail the call. At most 2**20 numbers.
  subroutine zazen_read_many(dataset, numbers, frames, status, statuses)
    type(zazen_dataset), intent(in) :: dataset
    integer(c_int64_t), intent(in) :: numbers(:)
    type(zazen_frame), intent(inout) :: frames(:)
    integer(c_int32_t), intent(out) :: status
    integer(c_int32_t), intent(inout), target, contiguous, optional :: statuses(:)
    type(c_ptr), allocatable :: handles(:)
    type(c_ptr) :: statuses_at
    if (size(frames) /= size(numbers)) then
      status = invalid_argument
      return
    end if
    statuses_at = c_null_ptr
    if (present(statuses)) then
      if (size(statuses) /= size(numbers)) then
        status = invalid_argument
        return
      end if
      if (size(statuses) > 0) statuses_at = c_loc(statuses)
    end if
    allocate(handles(max(1, size(numbers))))
    handles = c_null_ptr
    status = c_read_many(dataset%handle, numbers, size(numbers, kind=c_int64_t), handles, statuses_at)
    if (status == zazen_ok) frames%handle = handles(1:size(numbers))
  end subroutine

  !> Begins to read the frames of `set`, in storage order, or by ascending number if `ordered`, which
  !> is slower where that is another order. `memory`: the most bytes that are read ahead; `readers`:
  !> files in flight; `check`: compare checksums (by default it does).
  subroutine zazen_frames_open(dataset, set, frames, status, memory, readers, check, ordered)
    type(zazen_dataset), intent(in) :: dataset
    type(zazen_runset), intent(in) :: set
    type(zazen_frames), intent(inout) :: frames
    integer(c_int32_t), intent(out) :: status
    integer(c_int64_t), intent(in), optional :: memory, readers
    logical, intent(in), optional :: check, ordered
    type(read_options) :: options
    options%struct_size = c_sizeof(options)
    if (present(memory)) options%memory_max = memory
    if (present(readers)) options%readers = readers
    if (present(check)) options%unchecked = merge(0_c_int64_t, 1_c_int64_t, check)
    if (present(ordered)) options%ordered = merge(1_c_int64_t, 0_c_int64_t, ordered)
    status = c_frames(dataset%handle, set%handle, options, frames%handle)
  end subroutine

  !> The next frame; `more` is false at the end. A failure concerns one frame, and the iteration can
  !> continue.
  subroutine zazen_next(frames, frame, more, status)
    type(zazen_frames), intent(in) :: frames
    type(zazen_frame), intent(inout) :: frame
    logical, intent(out) :: more
    integer(c_int32_t), intent(out) :: status
    status = c_next(frames%handle, frame%handle)
    more = status /= zazen_ok .or. c_associated(frame%handle)
  end subroutine

  !> Frames that were not taken yet.
  function zazen_frames_remaining(frames) result(count)
    type(zazen_frames), intent(in) :: frames
    integer(c_int64_t) :: count
    count = c_frames_remaining(frames%handle)
  end function

  !> Where the frames taken so far came from.
  subroutine zazen_frames_stats(frames, stats, status)
    type(zazen_frames), intent(in) :: frames
    type(zazen_read_stats), intent(out) :: stats
    integer(c_int32_t), intent(out) :: status
    stats%struct_size = c_sizeof(stats)
    status = c_frames_stats(frames%handle, stats)
  end subroutine

  !> Ends an iteration.
  subroutine zazen_frames_close(frames)
    type(zazen_frames), intent(inout) :: frames
    call c_frames_close(frames%handle)
    frames%handle = c_null_ptr
  end subroutine

  !> Begins to find the files of the frames of `set`, in storage order, without reading them.
  subroutine zazen_paths_open(dataset, set, paths, status)
    type(zazen_dataset), intent(in) :: dataset
    type(zazen_runset), intent(in) :: set
    type(zazen_paths), intent(inout) :: paths
    integer(c_int32_t), intent(out) :: status
    status = c_paths(dataset%handle, set%handle, paths%handle)
  end subroutine

  !> The next frame's number, and the path of a file with exactly its bytes; `more` is false at the
  !> end. `frame` is nothing if the file is there by itself, unread and unchecked. Otherwise the file
  !> lives as long as `frame`. Freeing nothing does nothing, so free it in both cases. A failure
  !> concerns one frame, and the iteration can continue.
  subroutine zazen_paths_next(paths, number, path, frame, more, status)
    type(zazen_paths), intent(in) :: paths
    integer(c_int64_t), intent(inout) :: number
    character(len=:), allocatable, intent(out) :: path
    type(zazen_frame), intent(inout) :: frame
    logical, intent(out) :: more
    integer(c_int32_t), intent(out) :: status
    type(c_ptr) :: path_at
    path_at = c_null_ptr
    status = c_paths_next(paths%handle, number, path_at, frame%handle)
    more = status /= zazen_ok .or. c_associated(path_at)
    path = fortran_text(path_at)
  end subroutine

  !> Frames whose paths were not given yet.
  function zazen_paths_remaining(paths) result(count)
    type(zazen_paths), intent(in) :: paths
    integer(c_int64_t) :: count
    count = c_paths_remaining(paths%handle)
  end function

  !> Ends an iteration over paths.
  subroutine zazen_paths_close(paths)
    type(zazen_paths), intent(inout) :: paths
    call c_paths_close(paths%handle)
    paths%handle = c_null_ptr
  end subroutine

  !> The frame's number.
  function zazen_frame_number(frame) result(number)
    type(zazen_frame), intent(in) :: frame
    integer(c_int64_t) :: number
    number = c_frame_number(frame%handle)
  end function

  !> The frame's bytes, in place. Do not change them, and do not use them after zazen_frame_free.
  function zazen_frame_data(frame) result(bytes)
    type(zazen_frame), intent(in) :: frame
    integer(c_int8_t), pointer :: bytes(:)
    call c_f_pointer(c_frame_data(frame%handle), bytes, [c_frame_bytes(frame%handle)])
  end function

  !> The path of a file with exactly these bytes; empty if there is none. It lives as long as the
  !> frame.
  function zazen_frame_path(frame) result(path)
    type(zazen_frame), intent(in) :: frame
    character(len=:), allocatable :: path
    path = fortran_text(c_frame_path(frame%handle))
  end function

  !> The larger file that the frame is a part of, and the frame's offset in it, in bytes; empty if the
  !> frame has a file of its own, or is in no file that this process may open.
  subroutine zazen_frame_container(frame, path, offset)
    type(zazen_frame), intent(in) :: frame
    character(len=:), allocatable, intent(out) :: path
    integer(c_int64_t), intent(out) :: offset
    offset = 0
    path = fortran_text(c_frame_container(frame%handle, offset))
  end subroutine

  !> Where the frame came from: zazen_native, zazen_alien, zazen_backing or zazen_direct.
  function zazen_frame_source(frame) result(source)
    type(zazen_frame), intent(in) :: frame
    integer(c_int32_t) :: source
    source = c_frame_source(frame%handle)
  end function

  !> Frees a frame.
  subroutine zazen_frame_free(frame)
    type(zazen_frame), intent(inout) :: frame
    call c_frame_free(frame%handle)
    frame%handle = c_null_ptr
  end subroutine

  ! Writing.

  !> Opens a writer into the caches of `nodes` ("host:port,…", or a file with one node a line). `key`:
  !> the cluster key's file; `pattern`: the names of frames that have none, such as
  !> "frame-{n:07}.dcd"; `block`: wait for slow nodes instead of skipping frames; `window_frames`,
  !> `window_bytes`: the most that is in flight; `timeout`: seconds that a node may take for a frame;
  !> `copies`: how many nodes get each frame.
  subroutine zazen_writer_open(dataset, nodes, writer, status, key, pattern, block, window_frames, &
      window_bytes, timeout, copies)
    character(len=*), intent(in) :: dataset, nodes
    type(zazen_writer), intent(inout) :: writer
    integer(c_int32_t), intent(out) :: status
    character(len=*), intent(in), optional :: key, pattern
    logical, intent(in), optional :: block
    integer(c_int64_t), intent(in), optional :: window_frames, window_bytes, copies
    real, intent(in), optional :: timeout
    type(writer_options) :: options
    character(kind=c_char), allocatable, target :: node_texts(:), keys(:), patterns(:)
    options%struct_size = c_sizeof(options)
    options%nodes = kept_text(nodes, node_texts)
    options%key = kept_text(key, keys)
    options%pattern = kept_text(pattern, patterns)
    if (present(block)) options%block = merge(1_c_int64_t, 0_c_int64_t, block)
    if (present(window_frames)) options%window_frames = window_frames
    if (present(window_bytes)) options%window_bytes = window_bytes
    if (present(copies)) options%copies = copies
    if (present(timeout)) options%timeout_ms = max(1_c_int64_t, nint(timeout * 1000., c_int64_t))
    status = c_writer_open(c_text(dataset), options, writer%handle)
  end subroutine

  !> Pushes a frame's bytes, which may be reused at once. `name`: the file's name; without it the
  !> writer's pattern gives it.
  subroutine zazen_write(writer, number, bytes, status, name)
    type(zazen_writer), intent(in) :: writer
    integer(c_int64_t), intent(in) :: number
    integer(c_int8_t), intent(in), target, contiguous :: bytes(:)
    integer(c_int32_t), intent(out) :: status
    character(len=*), intent(in), optional :: name
    character(kind=c_char), allocatable, target :: names(:)
    type(c_ptr) :: name_at, data_at
    name_at = kept_text(name, names)
    data_at = c_null_ptr
    if (size(bytes) > 0) data_at = c_loc(bytes)
    status = c_write(writer%handle, number, name_at, data_at, size(bytes, kind=c_int64_t))
  end subroutine

  !> Waits until every frame that was pushed has its fate. The writer stays usable.
  subroutine zazen_writer_drain(writer, status)
    type(zazen_writer), intent(in) :: writer
    integer(c_int32_t), intent(out) :: status
    status = c_writer_drain(writer%handle)
  end subroutine

  !> One of the last few failures, from 0 on: node, frame, reason; empty if there are no more. Ask
  !> before zazen_writer_close.
  function zazen_writer_problem(writer, at) result(text)
    type(zazen_writer), intent(in) :: writer
    integer(c_int64_t), intent(in) :: at
    character(len=:), allocatable :: text
    text = fortran_text(c_writer_problem(writer%handle, at))
  end function

  !> The frames by fate so far.
  subroutine zazen_writer_counters(writer, counters, status)
    type(zazen_writer), intent(in) :: writer
    type(zazen_counters), intent(out) :: counters
    integer(c_int32_t), intent(out) :: status
    counters%struct_size = c_sizeof(counters)
    status = c_writer_counters(writer%handle, counters)
  end subroutine

  !> Sends what is in flight and ends the writer.
  subroutine zazen_writer_close(writer, counters, status)
    type(zazen_writer), intent(inout) :: writer
    type(zazen_counters), intent(out) :: counters
    integer(c_int32_t), intent(out) :: status
    counters%struct_size = c_sizeof(counters)
    status = c_writer_close(writer%handle, counters)
    if (status == zazen_ok) writer%handle = c_null_ptr
  end subroutine

  !> Ends a writer without waiting: frames in flight may or may not arrive.
  subroutine zazen_writer_abandon(writer)
    type(zazen_writer), intent(inout) :: writer
    call c_writer_abandon(writer%handle)
    writer%handle = c_null_ptr
  end subroutine

  ! Collectives over MPI: what zazen_mpi.h does in C.

  subroutine join(comm, context, everyone, status)
    type(MPI_Comm), intent(in) :: comm
    type(ranks_context), intent(inout), target :: context
    type(collectives), intent(inout) :: everyone
    integer(c_int32_t), intent(out) :: status
    logical :: up, inter
    integer :: world, error
    status = zazen_mpi
    call MPI_Initialized(up)
    if (.not. up) return
    if (comm == MPI_COMM_NULL) then
      status = invalid_argument
      return
    end if
    call MPI_Comm_test_inter(comm, inter)
    if (inter) then
      status = invalid_argument
      return
    end if
    call MPI_Comm_size(MPI_COMM_WORLD, world)
    if (c_check_launcher(int(world, c_int64_t)) /= zazen_ok) return
    call MPI_Comm_dup(comm, context%comm, error)
    if (error /= MPI_SUCCESS) return
    call MPI_Comm_set_errhandler(context%comm, MPI_ERRORS_RETURN)
    call MPI_Comm_rank(context%comm, context%rank)
    call MPI_Comm_size(context%comm, context%size)
    everyone%struct_size = c_sizeof(everyone)
    everyone%context = c_loc(context)
    everyone%rank = context%rank
    everyone%size = context%size
    everyone%allreduce_sum = c_funloc(allreduce_sum)
    everyone%allreduce_or = c_funloc(allreduce_or)
    everyone%alltoall = c_funloc(alltoall)
    everyone%alltoallv = c_funloc(alltoallv)
    everyone%broadcast = c_funloc(broadcast)
    everyone%allreduce_xor = c_funloc(allreduce_xor)
    status = zazen_ok
  end subroutine

  function allreduce(context, words, count, op) result(error)
    type(c_ptr), intent(in) :: context, words
    integer(c_int64_t), intent(in) :: count
    type(MPI_Op), intent(in) :: op
    integer :: error
    type(ranks_context), pointer :: ranks
    integer(c_int64_t), pointer :: values(:)
    integer(c_int64_t) :: at, now
    error = MPI_SUCCESS
    if (count == 0) return
    call c_f_pointer(context, ranks)
    call c_f_pointer(words, values, [count])
    at = 1
    do while (at <= count .and. error == MPI_SUCCESS)
      now = min(count - at + 1, message_bytes / 8)
      call MPI_Allreduce(MPI_IN_PLACE, values(at:at + now - 1), int(now), MPI_UINT64_T, op, ranks%comm, error)
      at = at + now
    end do
  end function

  function allreduce_sum(context, words, count) bind(C) result(error)
    type(c_ptr), value :: context, words
    integer(c_int64_t), value :: count
    integer(c_int32_t) :: error
    error = int(allreduce(context, words, count, MPI_SUM), c_int32_t)
  end function

  function allreduce_or(context, words, count) bind(C) result(error)
    type(c_ptr), value :: context, words
    integer(c_int64_t), value :: count
    integer(c_int32_t) :: error
    error = int(allreduce(context, words, count, MPI_BOR), c_int32_t)
  end function

  function allreduce_xor(context, words, count) bind(C) result(error)
    type(c_ptr), value :: context, words
    integer(c_int64_t), value :: count
    integer(c_int32_t) :: error
    error = int(allreduce(context, words, count, MPI_BXOR), c_int32_t)
  end function

  function alltoall(context, send, receive) bind(C) result(error)
    type(c_ptr), value :: context, send, receive
    integer(c_int32_t) :: error
    type(ranks_context), pointer :: ranks
    integer(c_int64_t), pointer :: out(:), into(:)
    integer :: code
    call c_f_pointer(context, ranks)
    call c_f_pointer(send, out, [ranks%size])
    call c_f_pointer(receive, into, [ranks%size])
    call MPI_Alltoall(out, 1, MPI_UINT64_T, into, 1, MPI_UINT64_T, ranks%comm, code)
    error = int(code, c_int32_t)
  end function

  ! Pairwise in shifted order: 64-bit lengths, and no rank is sent to by all at once.
  function alltoallv(context, send, send_bytes, receive, receive_bytes) bind(C) result(error)
    type(c_ptr), value :: context, send, send_bytes, receive, receive_bytes
    integer(c_int32_t) :: error
    type(ranks_context), pointer :: ranks
    type(c_ptr), pointer :: out(:), into(:)
    integer(c_int64_t), pointer :: out_bytes(:), into_bytes(:)
    integer(c_int8_t), pointer :: from_here(:), to_here(:)
    integer(c_int8_t), target :: nothing(1)
    integer(c_int64_t) :: sent, got, sending, getting
    integer :: shift, to, from, code
    call c_f_pointer(context, ranks)
    call c_f_pointer(send, out, [ranks%size])
    call c_f_pointer(receive, into, [ranks%size])
    call c_f_pointer(send_bytes, out_bytes, [ranks%size])
    call c_f_pointer(receive_bytes, into_bytes, [ranks%size])
    error = 0
    do shift = 1, ranks%size - 1
      to = modulo(ranks%rank + shift, ranks%size)
      from = modulo(ranks%rank - shift, ranks%size)
      from_here => nothing
      to_here => nothing
      if (out_bytes(to + 1) > 0) call c_f_pointer(out(to + 1), from_here, [out_bytes(to + 1)])
      if (into_bytes(from + 1) > 0) call c_f_pointer(into(from + 1), to_here, [into_bytes(from + 1)])
      sent = 0
      got = 0
      do while (sent < out_bytes(to + 1) .or. got < into_bytes(from + 1))
        sending = min(out_bytes(to + 1) - sent, message_bytes)
        getting = min(into_bytes(from + 1) - got, message_bytes)
        call MPI_Sendrecv(from_here(sent + 1:sent + sending), int(sending), MPI_BYTE, &
          merge(to, MPI_PROC_NULL, sending > 0), 0, &
          to_here(got + 1:got + getting), int(getting), MPI_BYTE, &
          merge(from, MPI_PROC_NULL, getting > 0), 0, ranks%comm, MPI_STATUS_IGNORE, code)
        if (code /= MPI_SUCCESS) then
          error = int(code, c_int32_t)
          return
        end if
        sent = sent + sending
        got = got + getting
      end do
    end do
  end function

  function broadcast(context, buffer, bytes) bind(C) result(error)
    type(c_ptr), value :: context, buffer
    integer(c_int64_t), value :: bytes
    integer(c_int32_t) :: error
    type(ranks_context), pointer :: ranks
    integer(c_int8_t), pointer :: values(:)
    integer(c_int64_t) :: at, now
    integer :: code
    error = 0
    if (bytes == 0) return
    call c_f_pointer(context, ranks)
    call c_f_pointer(buffer, values, [bytes])
    at = 1
    do while (at <= bytes)
      now = min(bytes - at + 1, message_bytes)
      call MPI_Bcast(values(at:at + now - 1), int(now), MPI_BYTE, 0, ranks%comm, code)
      if (code /= MPI_SUCCESS) then
        error = int(code, c_int32_t)
        return
      end if
      at = at + now
    end do
  end function
end module
