import pytest
import zazen

TREE = {
    "InvalidArgumentError": ValueError,
    "NotFoundError": FileNotFoundError,
    "PermissionDeniedError": PermissionError,
    "ConflictError": FileExistsError,
    "NoSpaceError": OSError,
    "UnavailableError": ConnectionError,
    "TimedOutError": TimeoutError,
    "CorruptError": OSError,
    "ProtocolError": OSError,
    "AuthenticationError": PermissionError,
    "TooLargeError": OverflowError,
    "BusyError": BlockingIOError,
    "UnsupportedError": NotImplementedError,
    "StaleError": OSError,
    "ShuttingDownError": ConnectionError,
    "IoError": OSError,
    "MpiError": RuntimeError,
    "ConfigError": ValueError,
}


def test_every_error_is_also_a_builtin():
    for code, (name, builtin) in enumerate(TREE.items(), start=1):
        error = getattr(zazen, name)
        assert issubclass(error, zazen.Error) and issubclass(error, builtin), name
        assert error.code == code and error.kind and error.__module__ == "zazen" and error.__doc__, name
    assert zazen.Error.kind is None and issubclass(zazen.ZazenWarning, UserWarning)


def test_errors_carry_errno_and_a_message(folder):
    with pytest.raises(FileNotFoundError) as caught:
        zazen.open(folder / "nowhere", direct=True)
    assert isinstance(caught.value, zazen.NotFoundError)
    assert caught.value.errno == 2 and "nowhere" in str(caught.value)
    assert zazen.InvalidArgumentError("x").errno == 22
