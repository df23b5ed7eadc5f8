"""Chinese: the messages of layertap.demo."""

MESSAGES = {
    "demo.both": "\n离线记录说明误差最先出现在哪里。有了两个模型，lt.find_fault 可以找到出错的模块和原因：",
    "demo.inside": "\n已经知道是哪一层；现在看它的各部分。",
    "demo.report": "\n同样的内容写成网页，可用任何浏览器打开：{path}",
    "demo.show": "查看一个位置的全部信息：layertap show {run} {site}",
    "demo.view": "在浏览器中查看两次运行：layertap view {sides}",
}
