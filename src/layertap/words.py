"""The main messages in the user's language: English, or Chinese where `LAYERTAP_LANG=zh` or the locale says so.

Only what a person reads first is here: verdicts, reasons, receipts. Names, numbers and errors stay as they are, so that
they can be searched for.
"""

from __future__ import annotations

from typing import Any

from layertap.messages import language, printable

_CHINESE = {
    # verdicts and their reasons
    "IDENTICAL": "完全一致",
    "NOISE": "仅舍入误差",
    "FAULT": "存在错误",
    "INCONCLUSIVE": "无法判定",
    "{verdict}: {candidate} against {reference}: {reasons}": "{verdict}：{candidate} 对比 {reference}：{reasons}",
    "{count} of {total} sites are above what rounding explains": "{total} 个位置中有 {count} 个超出舍入误差的范围",
    "{count} of {total} sites cannot be judged: {why}": "{total} 个位置中有 {count} 个无法判定：{why}",
    "all {total} sites are bit-identical": "全部 {total} 个位置逐位相同",
    "all {total} sites are within what rounding explains": "全部 {total} 个位置的差异都在舍入误差范围内",
    "the {total} matched sites agree, but {count} were recorded on one side only": (
        "已配对的 {total} 个位置一致，但有 {count} 个位置只在一侧有记录"
    ),
    "no site of one run could be matched with one of the other; give a mapping=": (
        "两次运行没有任何位置能够配对；请提供 mapping="
    ),
    # the lines below the verdict
    "first departure: {site} ({kind}), relative error {error}": "首个偏离：{site}（{kind}），相对误差 {error}",
    "at the last site the error is {growth} × that": "到最后一个位置，误差为该处的 {growth} 倍",
    "closest to a fault: {site}, {why}": "最接近错误的位置：{site}，{why}",
    "how sure: {why}. {hint}": "把握：{why}。{hint}",
    "Recorded runs show where an error is first seen, not whose it is: lt.find_fault tells, from both models.": (
        "离线记录只能说明误差最先出现在哪里，不能说明是哪一层造成的；要确定来源，请对两个模型使用 lt.find_fault。"
    ),
    "how sure: the floor is measured, from a run of the reference in the candidate's arithmetic": (
        "把握：误差下限是实测的（参考模型以候选精度运行所得）"
    ),
    "how sure: the floor is modelled from dtypes and depth; floor=RUN (the reference in the candidate's "
    "dtype) would measure it": "把握：误差下限由数据类型和深度估算；用 floor=RUN（参考模型以候选精度运行）可以实测",
    "all {total} rows: -v, --json, --html, report.rows": "全部 {total} 行：-v、--json、--html、report.rows",
    "not shown, for want of room: {titles}": "因宽度不足未显示：{titles}",
    "empty: {titles}": "空列：{titles}",
    "only the {count} rows that are no noise": "只看非舍入的 {count} 行",
    "to the first departure": "跳到首个偏离处",
    "only in the reference: {sites}": "仅参考侧有：{sites}",
    "only in the candidate: {sites}": "仅候选侧有：{sites}",
    # why a row is judged as it is
    "compared: {part} of {whole}, from {begin}": "已比较：整体 {whole} 中从 {begin} 起的 {part}",
    "{count} of {total} pairs have only a part of a tensor in common; {first}": (
        "{total} 对记录中有 {count} 对只有张量的一部分是共有的；{first}"
    ),
    "{part}; keep='tensor' on both sides to compare it": "{part}；两侧都用 keep='tensor' 记录即可比较",
    "{part} of {whole} was recorded in the reference, and another part in the candidate": (
        "参考侧记录的是整体 {whole} 中的 {part}，候选侧记录的是另一部分"
    ),
    "only a part of {site} was recorded ({part}), and where it lies in the whole is not known; record the whole, or "
    "compare runs of the same layout": (
        "{site} 只记录了一部分（{part}），且不知道它在整体中的位置；请记录整体，或比较分片方式相同的运行"
    ),
    "{site} is recorded as a summand of rank {rank} ({placements}), not as a value; record it after the reduction": (
        "{site} 记录的是第 {rank} 号进程的加数（{placements}），不是最终的值；请在归约之后记录"
    ),
    "the {count} ranks of the {side} hold parts of what the only rank of the other side holds": (
        "{side} 的 {count} 个进程各持有另一侧唯一进程所持张量的一部分"
    ),
    "bit for bit": "逐位相同",
    "{ratio} × the {kind} floor": "误差为{kind}下限的 {ratio} 倍",
    "{ratio} × the error of its fellows": "误差为同类的 {ratio} 倍",
    "measured": "实测",
    "modelled": "估算",
    "row {index} carries {share} of the error": "第 {index} 行占误差的 {share}",
    "channel {index} carries {share} of the error": "通道 {index} 占误差的 {share}",
    "a measured floor= would tell": "提供实测的 floor= 即可判定",
    "the {count} sites before it are equal but for rounding": "其之前的 {count} 个位置仅有舍入误差",
    "{dtype} values differ{share}: rounding may tip a choice between near equals; pass floor= to decide": (
        "{dtype} 值不同{share}：舍入可能改变相近选项之间的选择；请提供 floor= 以判定"
    ),
    "{why}; a choice made here differs, which rounding may have tipped": "{why}；此处的选择不同，可能由舍入引起",
    "shapes differ: {one} against {other}": "形状不同：{one} 对比 {other}",
    "and nothing proves which part is the same": "且无法证明哪一部分相同",
    "record the input ids or the mask on both sides": "请在两侧都记录 input_ids 或 mask",
    "record the input ids or the mask on both sides, or say which part is meant with a mapping whose layout is "
    "slice({axis},0,{short})": (
        "请在两侧都记录 input_ids 或 mask，或在 mapping 中用 layout slice({axis},0,{short}) 指明所比较的部分"
    ),
    "a mapping with a layout says how they belong together": "请用带 layout 的 mapping 说明两者的对应关系",
    "no value is finite on both sides": "没有任何值在两侧都是有限的",
    "all values within {tolerance}": "所有值都在 {tolerance} 之内",
    "{count} of {total} values are outside {tolerance}": "{total} 个值中有 {count} 个超出 {tolerance}",
    "{count} of {total} sites are outside the tolerances": "{total} 个位置中有 {count} 个超出给定的容差",
    "all {total} sites are within the tolerances": "全部 {total} 个位置都在给定的容差之内",
    "how sure: judged by the tolerances that were given ({tolerance}), not by what rounding explains": (
        "把握：按给定的容差（{tolerance}）判定，而不是按舍入误差"
    ),
    "sites= (--sites) judges only what it names, a mapping= pairs what differs in name": (
        "用 sites=（--sites）只判定指定的位置，用 mapping= 配对名称不同的位置"
    ),
    "{folder}: {count} files were not read: {names}": "{folder}：有 {count} 个文件未读取：{names}",
    "first departure: {site}, relative error {error}": "首个偏离：{site}，相对误差 {error}",
    "error: relative L2 error; floor: the error that rounding explains; ratio: error ÷ floor, for the whole tensor or "
    "its worst row or channel; jump: error ÷ the error of the row above": (
        "error：相对 L2 误差；floor：舍入可以解释的误差；ratio：error ÷ floor（整个张量或其最差的行或通道）；"
        "jump：与上一行误差之比"
    ),
    "names and contents disagree: `{stem}` is numbered differently ({how} in the candidate), as the contents of "
    "{count} layers show. {example}": (
        "名称与内容不符：`{stem}` 的编号不同（候选侧 {how}），{count} 层的内容表明了这一点。{example}"
    ),
    "`{stem}` is numbered differently ({how} in the candidate), which is the only way that the numbers of both sides "
    "fit; no layer's contents confirm it. {example}": (
        "`{stem}` 的编号不同（候选侧 {how}），只有这样两侧的编号才能对应；没有任何一层的内容能够证实。{example}"
    ),
    "`{one}` is paired with the candidate's `{other}`": "`{one}` 与候选侧的 `{other}` 配对",
    "the candidate's `{candidate}` holds what the reference calls `{reference}`, bit for bit": (
        "候选侧的 `{candidate}` 与参考侧的 `{reference}` 逐位相同"
    ),
    # a finding
    "{site} is wrong ({cause}): {evidence}.": "{site} 有错误（{cause}）：{evidence}。",
    "the model itself": "模型本身",
    "The two sides part at {op}.": "两侧从此处开始不同：{op}。",
    "Putting the reference's output back removes {share} of the final error. "
    "Rounding explains {floor} of the {local} seen.": (
        "换回参考模型在此处的输出后，最终误差消除 {share}。所见误差 {local} 中，舍入只能解释 {floor}。"
    ),
    "The output's error is {total}; rounding alone makes {floor}.": "输出误差为 {total}；仅舍入为 {floor}。",
    "also: {site} ({cause}): {evidence}": "另外：{site}（{cause}）：{evidence}",
    "{verdict}: every module returns the same bits on both sides": "{verdict}：每个模块两侧输出逐位相同",
    "{verdict}: no module does more than rounding explains; output error {error}, rounding alone {floor}": (
        "{verdict}：没有模块超出舍入误差的范围；输出误差 {error}，仅舍入为 {floor}"
    ),
    "{verdict}: {reasons}": "{verdict}：{reasons}",
    "note: {text}": "注意：{text}",
    "… and {count} more notes (finding.notes)": "……另有 {count} 条说明（finding.notes）",
    # the receipt
    "recorded {records} tensors from {fired} of {sites} sites in {steps} step(s), {kept}; {seconds} s, of which "
    "{overhead} s ({share}) inside layertap": (
        "已记录 {records} 个张量，来自 {sites} 个位置中的 {fired} 个，共 {steps} 步，{kept}；"
        "用时 {seconds} 秒，其中 layertap 占 {overhead} 秒（{share}）"
    ),
    "statistics only": "仅统计量",
    "{size} of tensors kept": "保存张量 {size}",
    "stopped early: {error}": "提前停止：{error}",
    # a monitor
    "nothing was recorded: {why}": "没有任何记录：{why}",
    "set_epoch was never called": "从未调用 set_epoch",
    "none of the epochs {epochs} came; the last one set was {last}": (
        "指定的 epoch {epochs} 一个都没有出现；最后设置的是 {last}"
    ),
    "none of batch_indices {batches} came in a recorded epoch": (
        "在要记录的 epoch 中，batch_indices {batches} 一个都没有出现"
    ),
    "{folder} is in use; this one writes to {own}": "{folder} 正在被使用；本次写入 {own}",
    "{error}; recording into memory instead": "{error}；改为记录到内存",
    "{where}: {error}; training goes on": "{where}：{error}；训练继续",
    "{layer}: epoch {epoch} is larger than the budget: its batches have files of their own, not one": (
        "{layer}：epoch {epoch} 超出预算：各 batch 分别保存为文件，不合并为一个"
    ),
    "epoch {epoch} is not recorded: remove_hooks() was called before it": (
        "epoch {epoch} 未被记录：此前已调用 remove_hooks()"
    ),
    "{layer}: nothing recorded in epoch {epoch}: {why}": "{layer}：epoch {epoch} 没有任何记录：{why}",
    "{layer}: the tensors of {count} outputs, first at epoch {epoch}, batch {batch}, are not in the run "
    "(keep, budget, or a full disk); see monitor.receipt": (
        "{layer}：{count} 个输出（首个在 epoch {epoch}、batch {batch}）的张量不在记录中"
        "（keep、预算或磁盘已满所致）；参见 monitor.receipt"
    ),
    "lost: {count} records could not be written": "丢失：{count} 条记录无法写入",
    "{sites}: recorded is the part on rank {rank} of {ranks}, {placements}: {part} of global {whole}": (
        "{sites}：只记录了第 {rank} 号进程（共 {ranks} 个）上的部分，{placements}：整体 {whole} 中的 {part}"
    ),
    "unknown shape": "形状未知",
    " and {count} more": " 等另外 {count} 个",
    "{sites}: sharded parameters and a plain output: it may be the whole or only the part on rank {rank}; "
    "use_local_output=False has the layout recorded too": (
        "{sites}：参数是分片的，而输出是普通张量：它可能是整体，也可能只是第 {rank} 号进程上的部分；"
        "使用 use_local_output=False 即可同时记录分片方式"
    ),
    "dropped for the budget: {count} tensors": "因预算限制未保存：{count} 个张量",
    "silent: {count} of {total} sites": "没有数据的位置：{total} 个中的 {count} 个",
    # watching a training
    "{rule} at {at}: {reason}": "触发 {rule}（{at}）：{reason}",
    "{site} has {counts} of {total} values": "{site} 的 {total} 个值中有 {counts}",
    "the loss is {loss}, {times} × its spread above the median {median} of the last {count} steps": (
        "损失为 {loss}，比最近 {count} 步的中位数 {median} 高出 {times} 倍离散度"
    ),
    "the gradient norm is {norm}, {times} × the median {median} of the last {count} steps": (
        "梯度范数为 {norm}，是最近 {count} 步中位数 {median} 的 {times} 倍"
    ),
    "the first that stands out is {site}: its norm is {value}, its median {median}": (
        "首个异常的位置是 {site}：其范数为 {value}，中位数为 {median}"
    ),
    "; no batch was recorded, so it may have come with the data": "；没有记录 batch，也可能来自数据",
    "no recorded site stands out from its last steps": "没有记录的位置偏离其最近几步",
    "the gradient has vanished at {site}: {rms} a value, {share} of the middle of all": (
        "{site} 处梯度消失：每个值 {rms}，为全部中位数的 {share} 倍"
    ),
    "{zeros} of the values of {site} are zero": "{site} 的值中有 {zeros} 为零",
    "an update of {site} is {ratio} × the weight; expected {low} to {high}": (
        "{site} 的更新是权重的 {ratio} 倍；应在 {low} 到 {high} 之间"
    ),
    "the loss has not fallen for {count} steps: at best {now}, before that {best}": (
        "损失已有 {count} 步没有下降：最低 {now}，此前 {best}"
    ),
    "the run reached its disk budget: of the steps up to {step}, every second one was taken out": (
        "记录已达到磁盘预算：到第 {step} 步为止，每两步删去一步"
    ),
    "the {steps} steps that both have are bit-identical, but {count} steps are on one side only": (
        "两侧共有的 {steps} 步逐位相同，但有 {count} 步只在一侧"
    ),
    "they part at step {step} from the first site on, and no batch was recorded: the data may differ, or the model": (
        "两侧从第 {step} 步的首个位置起不同，且没有记录 batch：可能是数据不同，也可能是模型不同"
    ),
    "the model": "模型",
    "the batch itself is not finite: {what}": "输入批次本身含非有限值：{what}",
    "the weights of {name} were not finite before this step": "{name} 的权重在这一步之前就已含非有限值",
    "the optimizer's update of {name} is not finite": "优化器对 {name} 的更新含非有限值",
    "born in the loss: everything that was recorded before it is finite": "产生于损失函数：此前记录的一切都是有限值",
    "born in the forward pass of {name}": "产生于 {name} 的前向计算",
    "born in the backward pass of {name}": "产生于 {name} 的反向计算",
    "; {before}, right before it, is finite": "；紧接在它之前的 {before} 仍是有限值",
    "steps {span} of the ring are in the run": "缓存中的第 {span} 步已写入运行记录",
    "shown: step {step}, {which}; --step shows another, SITE one site over all steps": (
        "显示第 {step} 步（{which}）；用 --step 查看其他步，给出 SITE 查看某一位置的全部步"
    ),
    "the first with NaN or Inf": "首个含 NaN 或 Inf 的步",
    "the last": "最后一步",
    # two trainings
    "the two trainings have no step and site in common": "两次训练没有共同的步和位置",
    "what both have is bit-identical, but {count} sites are on one side only": (
        "共有的部分逐位相同，但有 {count} 个位置只在一侧有记录"
    ),
    "all {records} records of {steps} steps are bit-identical": "{steps} 步的全部 {records} 条记录逐位相同",
    "the batches differ from step {step} on: the data, its order or its augmentation, not the model": (
        "从第 {step} 步起输入批次不同：是数据、顺序或数据增强的差异，不是模型"
    ),
    "they part at step {step}, by no more than rounding explains": "两者在第 {step} 步分开，差异在舍入误差范围内",
    "they part at step {step} by more than rounding explains": "两者在第 {step} 步分开，差异超出舍入误差",
    "they part by rounding at step {first} and by more than that from step {above} on: rounding that grew, or a "
    "small fault; nothing here can tell": (
        "两者在第 {first} 步因舍入误差分开，从第 {above} 步起超出舍入误差：是误差逐步放大还是微小的错误，无法判定"
    ),
    "first bit that differs: {place}": "首个不同的比特：{place}",
    "above rounding from: {place}": "超出舍入误差始于：{place}",
    "compared: {records} records of {steps} steps": "已比较：{steps} 步的 {records} 条记录",
    "first non-finite values: {site} ({nan} NaN, {inf} Inf)": "首个非有限值：{site}（{nan} 个 NaN，{inf} 个 Inf）",
    # compiled files: are their captures real?
    "observer drift: none; the output with taps is bit-identical to the one without": (
        "观测漂移：无；带探针的输出与不带探针的输出逐位相同"
    ),
    "observer drift: with taps the output{where} moves by {error} of its length, {ratio} × the modelled floor: "
    "rounding, from other fusions": (
        "观测漂移：加探针后输出{where}相对变化 {error}，为估算下限的 {ratio} 倍：属于融合方式不同造成的舍入"
    ),
    "observer drift: with taps the output{where} moves by {error} of its length, {ratio} × the modelled floor: the "
    "taps change what is computed, so these captures are not those of the artefact as it runs without them": (
        "观测漂移：加探针后输出{where}相对变化 {error}，为估算下限的 {ratio} 倍：探针改变了计算，"
        "这些记录不代表不带探针时的运行"
    ),
    "freshness: on a second input {moved} of {tested} captures change": (
        "新鲜度：换一个输入后，{tested} 个记录中有 {moved} 个发生变化"
    ),
    "freshness: not tested, no input can be varied (masks, positions and single values are left alone)": (
        "新鲜度：未检验，没有可以改变的输入（掩码、位置和单个值保持不变）"
    ),
    "freshness: not tested, a second input made from the first was refused: {error}": (
        "新鲜度：未检验，由第一个输入构造的第二个输入被拒绝：{error}"
    ),
    "checks: the runs that this took are layertap's own, once for these sites; no time here counts them": (
        "检验：以上检验所需的运行由 layertap 自行完成，这些位置只做一次；所列时间均不包含它们"
    ),
    "constant: no input reaches {sites}: folded by the compiler, or from shapes alone": (
        "常量：{sites} 与输入无关：已被编译器折叠，或只取决于形状"
    ),
    "unmoved: {sites} gave the same values on a second input; stale, or independent of what was varied": (
        "未变化：{sites} 在第二个输入下数值相同；可能是陈旧数据，或与所改变的输入无关"
    ),
    "ORT_DISABLE_ALL: without ONNX Runtime's optimisations every capture is bit-identical": (
        "ORT_DISABLE_ALL：关闭 ONNX Runtime 的优化后，所有记录逐位相同"
    ),
    "ORT_DISABLE_ALL: without ONNX Runtime's optimisations all captures agree to {error} of their size": (
        "ORT_DISABLE_ALL：关闭 ONNX Runtime 的优化后，所有记录的相对差异不超过 {error}"
    ),
    "ORT_DISABLE_ALL: ONNX Runtime's optimisations change {where} by {error} of its length, {ratio} × the "
    "modelled floor": "ORT_DISABLE_ALL：ONNX Runtime 的优化使 {where} 相对变化 {error}，为估算下限的 {ratio} 倍",
    "logits: None. With sampling on the device the model returns tokens, and logits only if it was compiled with "
    "output_logits=True together with an OnDeviceSamplingConfig; layertap.targets.neuron.prepare sets both": (
        "logits 为 None：在设备上采样时模型只返回 token；编译时须同时设置 output_logits=True 和 "
        "OnDeviceSamplingConfig 才会返回 logits；layertap.targets.neuron.prepare 会一并设置"
    ),
    # silent precision
    "precision: at {count} of {total} sites the error has the size of {dtype} rounding, though the tensors say "
    "float32": "精度：{total} 个位置中有 {count} 个的误差与 {dtype} 的舍入相当，尽管张量标为 float32",
    "the candidate's runtime says that it computes in {dtype}": "候选模型的运行时自称以 {dtype} 计算",
    "the candidate's parameters are {dtype}, the reference's are not": "候选模型的参数是 {dtype}，参考模型的不是",
    "every value of the candidate's {site} fits into {dtype}": "候选侧 {site} 的每个值都可以用 {dtype} 表示",
    "precision: {told}; that explains part of the errors, and only what is beyond it counts": (
        "精度：{told}；这解释了部分误差，只有超出的部分才算"
    ),
    "precision: {told}, which explains every error": "精度：{told}，这解释了全部误差",
    "nothing proves it: any error of that size and spread looks so": "但没有证据：任何这样大小和分布的误差都会如此",
}


def say(template: str, **values: Any) -> str:
    """A message with its values filled in, in the user's language.

    >>> say("all {total} sites are bit-identical", total=3)
    'all 3 sites are bit-identical'
    """
    if language() == "zh":
        template = _CHINESE.get(template, template)
    return printable(template.format(**values)) if values else template
