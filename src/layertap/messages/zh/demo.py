"""演示。"""

MESSAGES = {
    "demo.report": "\n同样的内容写成网页，可用任何浏览器打开：{path}",
    "demo.view": "在浏览器中查看两次运行：layertap view {sides}",
    "demo.show": "查看一个位置的全部信息：layertap show {run} {site}",
}
