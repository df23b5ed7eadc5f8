"""The main messages in Chinese (F4)."""

import string

import pytest
import torch
from torch import nn

import layertap as lt
from layertap import words


@pytest.mark.parametrize(("english", "chinese"), words._CHINESE.items())
def test_f4_a_translation_keeps_every_value(english, chinese):
    def fields(text):
        return sorted(name for _, name, _, _ in string.Formatter().parse(text) if name)

    assert fields(english) == fields(chinese)


def test_f4_the_verdict_and_the_receipt_speak_chinese(monkeypatch):
    monkeypatch.setenv("LAYERTAP_LANG", "zh")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with lt.record(model, sites="*", keep="tensor") as first:
        model(torch.ones(2, 4))
    with torch.no_grad():
        model[1].weight.mul_(2)
    with lt.record(model, sites="*", keep="tensor") as second:
        model(torch.ones(2, 4))
    assert "已记录 3 个张量" in str(first.receipt)
    text = str(lt.diff(first.run, second.run))
    assert text.startswith("存在错误：")
    assert "首个偏离：1（Linear）" in text


def test_the_locale_is_heard(monkeypatch):
    monkeypatch.delenv("LAYERTAP_LANG", raising=False)
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert words.language() == "zh"
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    assert words.language() == "en"
