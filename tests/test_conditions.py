"""The device of a measurement has a name that no other kind of device has."""

import pytest

from lmtime.timing.conditions import device_folder, device_slug, name_in

PLAIN = (
    "vendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: {}\nstepping\t: 1\n"
)


@pytest.mark.parametrize(
    ("shown", "name"),
    [
        ("AMD EPYC", "AMD EPYC (family 26, model 2)"),
        ("AMD EPYC 9654 96-Core Processor", "AMD EPYC 9654 96-Core Processor"),
        ("Intel(R) Xeon(R) Processor @ 2.60GHz", "Intel(R) Xeon(R) Processor @ 2.60GHz"),
    ],
)
def test_a_name_without_a_number_tells_family_and_model(shown, name):
    assert name_in(PLAIN.format(shown) * 2) == name


def test_what_is_not_there_is_not_told():
    assert name_in("") == ""
    assert name_in("model name\t: some CPU\n") == "some CPU"


def test_the_folder_of_results_has_the_name_in_it():
    assert device_folder("cpu").startswith(device_slug("cpu"))
